"""Cutting documents into chunks of a number of tokens, and by whose tokens these are measured.

A chunk is an exact slice of its document's text."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Any

import regex
from tokenizers import Encoding, Regex, Tokenizer, models, pre_tokenizers

from ratchet.core.config import WORDS, IndexConfig, ModelConfig, written
from ratchet.core.errors import UserError
from ratchet.core.records import with_title
from ratchet.core.words import LETTER, MARK, UNSPACED
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.retrieval.encoders.limits import TokenLimit

# A long title makes chunks smaller, but not smaller than this share of what fits without one: an encoder cuts their
# ends then, which is counted.
SMALLEST_SHARE = 1 / 8

LONGEST_WORD = 100
"""Characters, at least, of what no chunk has to have whole: an address, a line of data."""
SPACED_PART = rf"[{LETTER}{MARK}\p{{Cf}}--{UNSPACED}]"
JOINED = regex.compile(
    rf"{SPACED_PART}{{2}}|{UNSPACED}[{MARK}]|\p{{N}}[.,:/^'’]\p{{N}}|\p{{L}}['’]\p{{L}}", regex.VERSION1
)
"""Neighbours that stay together. In scripts without blanks every two letters may be parted."""

Spans = list[tuple[int, int]]


class Chunker:
    """Chunks of `size` tokens, the last one shorter; each begins with the last `overlap` tokens of the one before.
    Where no chunk would have a word or a number whole, as with an overlap of 0, a chunk ends before it.

    The paper's corpus is cut so with 512 and 80 (mRAG, appendix C). Control tokens in a document are counted split,
    as a model reads them. `tokenizer` is a fast tokenizer of transformers, or one of tokenizers; `where` names it in
    errors.

    With the limit of an encoder, the chunks of a document are cut smaller where one of them would be too long with its
    title, and overlap by less in proportion. The encoder cuts no chunk then, unless its title fills the limit.
    """

    def __init__(self, tokenizer: Any, size: int, overlap: int, where: str, limit: TokenLimit | None = None) -> None:
        if not isinstance(tokenizer, Tokenizer) and not getattr(tokenizer, "is_fast", False):
            raise UserError(
                f"{where}: chunks are cut with a fast tokenizer (a tokenizer.json), and this one has none; "
                "name another as index.tokenizer"
            )
        backend = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.backend_tokenizer
        # A copy of our own: nothing that others set on theirs (padding, truncation) changes a chunk.
        self._tokenizer = Tokenizer.from_str(backend.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        self._size, self._overlap = size, overlap
        self.limit = limit
        room = size
        if limit is not None and limit.max_text_tokens is not None:
            if limit.max_text_tokens < 1:
                raise UserError(
                    f"{limit.name}: reads {limit.tokens} tokens, which leaves no room for text beside the special "
                    "tokens and the prefix; take another, or with kind: sparse a higher index.encoder.max_length"
                )
            room = min(size, limit.max_text_tokens)
        self._smallest = max(1, int(room * SMALLEST_SHARE))
        self.fits = () if limit is None else (str(limit),)
        # Chunks that overlap were whole words before: their indexes need not be built again.
        rules = "" if overlap else "whole words"
        self.digest = hashlib.sha256((self._tokenizer.to_str() + rules).encode()).hexdigest()[:32]
        """A digest of the tokenizer. With the same size, overlap and `fits`: equal digest, equal chunks."""

    def cut(self, texts: Sequence[str], titles: Sequence[str] = ()) -> list[Spans]:
        """Return each text's chunks as (start, end) in characters, together covering the text; at least one."""
        return self.cut_and_count(texts, titles)[0]

    def cut_and_count(self, texts: Sequence[str], titles: Sequence[str] = ()) -> tuple[list[Spans], tuple[int, int]]:
        """Cut each text; return the chunks too, and how many are longer than the encoder reads and their tokens past
        that."""
        titles = titles or [""] * len(texts)
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        sizes = dict.fromkeys(range(len(texts)), self._size)
        spans: list[Spans] = [[]] * len(texts)
        over: dict[int, list[int]] = {}
        while sizes:  # of the documents that are still to be cut: first all, then those with a chunk that is too long
            for i, size in sizes.items():
                spans[i] = self._spans(texts[i], encodings[i], size)
            if self.limit is None or self.limit.tokens is None:
                break
            pieces = [piece for i in sizes for piece in chunk_texts(texts[i], titles[i], spans[i])]
            lengths = iter(self.limit.lengths(pieces))
            smaller: dict[int, int] = {}
            for i, alone in zip(sizes, self.limit.lengths([titles[i] for i in sizes]), strict=True):
                own = [next(lengths) for _ in spans[i]]
                over[i] = [length - self.limit.tokens for length in own if length > self.limit.tokens]
                if over[i]:
                    # As many of its tokens as there is room for beside the title.
                    fits = min(sizes[i], len(encodings[i])) * (self.limit.tokens - alone) // max(max(own) - alone, 1)
                    if (size := max(fits, self._smallest)) < sizes[i]:
                        smaller[i] = size
            sizes = smaller
        return spans, (sum(map(len, over.values())), sum(map(sum, over.values())))

    def _spans(self, text: str, encoding: Encoding, size: int) -> Spans:
        count, overlap = len(encoding), self._overlap * size // self._size

        def boundary(token: int) -> int:
            """Where a token begins, the space before it left to the token before: so slices join without gaps."""
            if token <= 0 or token >= count:
                return 0 if token <= 0 else len(text)
            span = encoding.token_to_chars(token)
            return span[0] if span else len(text)

        spans, start = [], 0
        while start + size < count:
            end, following = start + size, start + size - overlap
            word = word_start(text, boundary(end))
            if word < boundary(following):  # both chunks would have a part of it alone
                first = encoding.char_to_token(word)
                if first is not None and first > start and boundary(first) > boundary(start):
                    end, following = first, first - overlap if first - overlap > start else first
            spans.append((boundary(start), boundary(end)))
            start = following
        spans.append((boundary(start), len(text)))
        # A character of several tokens lies on one side of a boundary whole: chunks of few tokens can come out empty.
        return [span for span in spans if span[0] < span[1]] or [(0, len(text))]


def word_start(text: str, at: int) -> int:
    """Return where the word begins that the place `at` lies inside of; `at` itself between words."""
    lowest = max(0, at - LONGEST_WORD)
    while at > lowest and _is_inside(text, at):
        at -= 1
    return at


def _is_inside(text: str, at: int) -> bool:
    """Return whether the characters around a place belong to one word, or to one number such as 1,407.5 or 10^6."""
    around = text[max(0, at - 2) : at + 2]
    middle = min(2, at)
    return any(match.start() < middle < match.end() for match in JOINED.finditer(around, overlapped=True))


def chunk_texts(text: str, title: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Return the text that is indexed of each chunk of a document."""
    return [with_title(title, text[start:end]) for start, end in spans]


ONE_BY_ONE = r"\p{Han}\p{Hiragana}\p{Katakana}"
WORD = rf"[{ONE_BY_ONE}]|(?:(?![{ONE_BY_ONE}])[\p{{L}}\p{{M}}\p{{N}}]){{1,8}}|[^\s\p{{L}}\p{{M}}\p{{N}}]"
"""One token with `index.tokenizer: words`: up to eight letters and digits of a word, as most tokens of a model hold no
more; one character of Chinese and Japanese, which have no spaces; one of anything else but a space."""


def chunk_tokenizer_of(index: IndexConfig, agent: ModelConfig | None, limit: TokenLimit | None) -> tuple[Any, str]:
    """Return a tokenizer and its name: index.tokenizer; else the encoder's own; else the agent's."""
    if index.tokenizer == WORDS:
        return word_tokenizer(), WORDS
    if index.tokenizer is not None:
        return load_tokenizer(index.tokenizer, None), written(index.tokenizer)
    if limit is not None and getattr(limit.tokenizer, "is_fast", False):
        return limit.tokenizer, written(limit.name)
    if agent is None:
        raise UserError(
            "index.tokenizer is not set and there is no models.agent to take it from; set index.tokenizer, such as "
            f"`tokenizer: {WORDS}`, which needs no model"
        )
    try:
        return load_tokenizer(agent.path, agent.revision), written(agent.path)
    except UserError as error:
        raise UserError(
            f"{error}. Chunks are measured in its tokens; with `tokenizer: {WORDS}` under index no model is needed"
        ) from error


def word_tokenizer() -> Tokenizer:
    """Return the tokenizer of `index.tokenizer: words`."""
    tokenizer = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
    return tokenizer


def warn_of_smaller_chunks(index: IndexConfig, limit: TokenLimit | None) -> None:
    """Warn on stderr where the encoder reads less than index.chunk_tokens."""
    if limit is not None and limit.max_text_tokens is not None and index.chunk_tokens > limit.max_text_tokens:
        print(
            f"{index.path}: index.chunk_tokens is {index.chunk_tokens}, and {limit.name} reads {limit.tokens} "
            "tokens, a chunk's title, prefix and special tokens included: chunks are cut smaller, so that all of "
            "them is read. A higher index.encoder.max_length of a sparse encoder that reads more leaves them larger.",
            file=sys.stderr,
        )
