"""Cutting documents into chunks of a number of tokens. A chunk is an exact slice of its document's text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from tokenizers import Encoding, Tokenizer

from ratchet.errors import UserError
from ratchet.records import with_title
from retrieval.encoders.limits import TokenLimit

# A long title makes chunks smaller, but not smaller than this share of what fits without one: an encoder cuts their
# ends then, which is counted.
SMALLEST_SHARE = 1 / 8

Spans = list[tuple[int, int]]
Cuts = dict[str, tuple[int, int]]
"""By an encoder's digest: how many chunks are longer than it reads, and their tokens past that."""


class Chunker:
    """Chunks of `size` tokens, the last one shorter; each begins with the last `overlap` tokens of the one before.

    The paper's corpus is cut so with 512 and 80 (mRAG, appendix C). Control tokens in a document are counted split,
    as a model reads them. `tokenizer` is a fast tokenizer of transformers; `where` names it in errors.

    With `limits`, of encoders, the chunks of a document are cut smaller where one of them would be too long with its
    title, and overlap by less in proportion. No chunk is cut by an encoder then, unless its title fills the limit.
    """

    def __init__(self, tokenizer: Any, size: int, overlap: int, where: str, limits: Sequence[TokenLimit] = ()) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(
                f"{where}: chunks are cut with a fast tokenizer (a tokenizer.json), and this one has none; "
                "name another as index.tokenizer"
            )
        # A copy of our own: nothing that others set on theirs (padding, truncation) changes a chunk.
        self._tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        self._size, self._overlap = size, overlap
        self._limits = tuple(limits)
        for limit in limits:
            if limit.max_text_tokens is not None and limit.max_text_tokens < 1:
                raise UserError(
                    f"{limit.name}: max_length {limit.tokens} leaves no room for text beside the special tokens and "
                    "document_prefix; raise it in index.encoder, or shorten the prefix"
                )
        rooms = [limit.max_text_tokens for limit in limits if limit.max_text_tokens is not None]
        self._smallest = max(1, int(min([size, *rooms]) * SMALLEST_SHARE))
        self.fits = tuple(sorted(set(map(str, limits))))
        """The limits, in words."""
        self.digest = hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()[:32]
        """Of the tokenizer. With the same size, overlap and `fits`: equal digest, equal chunks."""

    def cut(self, texts: Sequence[str], titles: Sequence[str] = ()) -> list[Spans]:
        """For each text its chunks as (start, end) in characters, together covering the text; at least one."""
        return self.cut_and_count(texts, titles)[0]

    def cut_and_count(self, texts: Sequence[str], titles: Sequence[str] = ()) -> tuple[list[Spans], Cuts]:
        """The chunks of each text, and what the encoders will cut off of them all the same."""
        titles = titles or [""] * len(texts)
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        sizes = dict.fromkeys(range(len(texts)), self._size)
        spans: list[Spans] = [[]] * len(texts)
        over: dict[str, dict[int, list[int]]] = {limit.encoder: {} for limit in self._limits}
        while sizes:  # of the documents that are still to be cut: first all, then those with a chunk that is too long
            for i, size in sizes.items():
                spans[i] = self._spans(texts[i], encodings[i], size)
            smaller = dict(sizes)
            for limit in self._limits:
                if limit.tokens is None:
                    continue
                pieces = [piece for i in sizes for piece in chunk_texts(texts[i], titles[i], spans[i])]
                lengths = iter(limit.lengths(pieces))
                for i, alone in zip(sizes, limit.lengths([titles[i] for i in sizes]), strict=True):
                    own = [next(lengths) for _ in spans[i]]
                    over[limit.encoder][i] = [length - limit.tokens for length in own if length > limit.tokens]
                    if over[limit.encoder][i]:
                        # As many of its tokens as there is room for beside the title.
                        fits = min(sizes[i], len(encodings[i])) * (limit.tokens - alone) // max(max(own) - alone, 1)
                        smaller[i] = min(smaller[i], max(fits, self._smallest))
            sizes = {i: size for i, size in smaller.items() if size < sizes[i]}
        return spans, {
            encoder: (sum(map(len, cut.values())), sum(map(sum, cut.values()))) for encoder, cut in over.items()
        }

    def _spans(self, text: str, encoding: Encoding, size: int) -> Spans:
        count, step = len(encoding), size - self._overlap * size // self._size

        def boundary(token: int) -> int:
            """Where a token begins, the space before it left to the token before: so slices join without gaps."""
            if token <= 0 or token >= count:
                return 0 if token <= 0 else len(text)
            span = encoding.token_to_chars(token)
            return span[0] if span else len(text)

        starts = range(0, max(count - size, 0) + step, step)
        spans = [(boundary(start), boundary(start + size)) for start in starts]
        # A character of several tokens lies on one side of a boundary whole: chunks of few tokens can come out empty.
        return [span for span in spans if span[0] < span[1]] or [(0, len(text))]


def chunk_texts(text: str, title: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """What is indexed of each chunk of a document."""
    return [with_title(title, text[start:end]) for start, end in spans]
