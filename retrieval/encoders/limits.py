"""Limits of encoders: one cuts off the tokens of a text past its limit silently; here that is counted and reported."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.core.records import content_key
from ratchet.core.text import replace_surrogates

if TYPE_CHECKING:
    import numpy as np

Embed = Callable[[Sequence[str]], "np.ndarray"]
"""A function from n texts to float32 [n, dimension], with rows of length 1."""


def end_of(embed: Embed, text: str) -> tuple[str, int]:
    """Return the end of a text that the embedder reads, and how many tokens before it are left out.

    A model of this process reads no more than its limit; what a server reads is not known, and taken to be all.
    """
    own_end: Callable[[str], tuple[str, int]] | None = getattr(embed, "end_of", None)
    return (text, 0) if own_end is None else own_end(text)


logger = logging.getLogger(__name__)

# Texts whose tokens are in memory at once.
BATCH = 256


class TokenLimit:
    """An encoder's limit, for its documents or for its queries; it can be sent to other processes."""

    def __init__(self, tokenizer: Any, prefix: str, tokens: int | None, name: str, encoder: str) -> None:
        """`tokenizer` is a copy of the encoder's own (of transformers) that nobody changes or gives other settings.

        `prefix` is put before every text, and counts. `tokens`: None where the encoder reads texts of any length.
        `name` is what users call the encoder, `encoder` its digest.
        """
        self.tokens = tokens
        self.name = name
        self.encoder = encoder
        self.tokenizer = tokenizer
        self._prefix = prefix
        self._warned = False
        self.max_text_tokens: int | None = None
        """Tokens of a text beside the prefix and the special tokens; None where the encoder has no limit."""
        if tokens is not None:
            self.max_text_tokens = tokens - self.lengths([""])[0]
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._digest = content_key(encoder if backend is None else backend.to_str(), prefix)[:16]

    def __str__(self) -> str:
        """Equal words, equal limits: other weights of a model, or another prefix of its queries, change nothing."""
        return f"{'any number of' if self.tokens is None else self.tokens} tokens of tokenizer {self._digest}"

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each text as the encoder would have to read it: with its prefix and special tokens."""
        if self.tokens is None or not texts:
            return [0] * len(texts)
        lengths: list[int] = []
        options = {"truncation": False, "return_attention_mask": False, "verbose": False}
        for at in range(0, len(texts), BATCH):
            given = [replace_surrogates(self._prefix + text) for text in texts[at : at + BATCH]]  # as encoders do
            lengths += map(len, self.tokenizer(given, **options)["input_ids"])
        return lengths

    def over(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each text past the limit."""
        return [max(length - (self.tokens or 0), 0) for length in self.lengths(texts)]

    def end_of(self, text: str) -> tuple[str, int]:
        """Return the end of a text that the encoder reads, and how many tokens before it are left out."""
        start = bisect_left(range(len(text)), True, key=lambda start: not self.over([text[start:]])[0])
        whole, end = self.lengths([text, text[start:]])
        return text[start:], whole - end

    def warn_of_cut(self, queries: Sequence[str]) -> None:
        """Warn where the encoder cuts one of these: once in a process, as later queries are much the same."""
        cut = 0 if self._warned else max(self.over(queries), default=0)
        if cut:
            self._warned = True
            logger.warning(
                "a query of %d tokens was cut to the %d that %s reads, so its end counts for nothing; shorten the "
                "queries, or raise max_length of a sparse encoder whose model reads more (this warning is shown once)",
                (self.tokens or 0) + cut,
                self.tokens,
                self.name,
            )
