"""Cutting documents into chunks of a number of tokens. A chunk is an exact slice of its document's text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from tokenizers import Encoding, Tokenizer

from ratchet.errors import UserError


class Chunker:
    """Chunks of `size` tokens, the last one shorter; each begins with the last `overlap` tokens of the one before.

    The paper's corpus is cut so with 512 and 80 (mRAG, appendix C). Control tokens in a document are counted split,
    as a model reads them. `tokenizer` is a fast tokenizer of transformers; `where` names it in errors.
    """

    def __init__(self, tokenizer: Any, size: int, overlap: int, where: str) -> None:
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
        self._size, self._step = size, size - overlap
        self.digest = hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()[:32]
        """Equal digest, equal chunks."""

    def cut(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """For each text its chunks as (start, end) in characters, together covering the text; at least one."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [self._spans(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    def _spans(self, text: str, encoding: Encoding) -> list[tuple[int, int]]:
        count = len(encoding)

        def boundary(token: int) -> int:
            """Where a token begins, the space before it left to the token before: so slices join without gaps."""
            if token <= 0 or token >= count:
                return 0 if token <= 0 else len(text)
            found = encoding.token_to_chars(token)
            return found[0] if found else len(text)

        starts = range(0, max(count - self._size, 0) + self._step, self._step)
        spans = [(boundary(start), boundary(start + self._size)) for start in starts]
        # A character of several tokens lies on one side of a boundary whole: chunks of few tokens can come out empty.
        return [span for span in spans if span[0] < span[1]]
