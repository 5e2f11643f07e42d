"""By whose tokens the chunks of a config's index are measured, and which encoders they have to fit."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.tokenizer import load_tokenizer
from ratchet.config import IndexConfig, ModelConfig, written
from ratchet.errors import UserError
from retrieval.encoders.limits import TokenLimit


@dataclass(frozen=True)
class ChunkTokenizer:
    """The tokenizer that measures chunks, and the encoders whose limits chunks must fit."""

    tokenizer: Any
    """Of transformers."""
    name: str
    """What the config calls it."""
    limits: tuple[TokenLimit, ...]
    """Of the index's encoders: of all of them, where it is a hybrid, whose parts have the same chunks."""


def chunk_tokenizer_of(index: IndexConfig, agent: ModelConfig | None, limits: Sequence[TokenLimit]) -> ChunkTokenizer:
    """index.tokenizer; else the encoder's own, of several that of the one that reads the least; else the agent's."""
    _check_parts(index)
    named = (index.parts[0].tokenizer if index.parts else None) or index.tokenizer
    if named is not None:
        return ChunkTokenizer(load_tokenizer(named, None), written(named), tuple(limits))
    if with_own := [limit for limit in limits if getattr(limit.tokenizer, "is_fast", False)]:
        least = min(with_own, key=lambda limit: (limit.tokens or math.inf, limit.encoder))
        return ChunkTokenizer(least.tokenizer, written(least.name), tuple(limits))
    if agent is None:
        raise UserError("index.tokenizer is not set and there is no models.agent to take it from; set index.tokenizer")
    return ChunkTokenizer(load_tokenizer(agent.path, agent.revision), written(agent.path), tuple(limits))


def _check_parts(index: IndexConfig) -> None:
    """Refuse now what could not be opened as one index later."""
    for part in index.parts[1:]:
        for key in ("chunk_tokens", "chunk_overlap", "tokenizer"):
            default = index.tokenizer if key == "tokenizer" else None
            first, here = (default if (own := getattr(p, key)) is None else own for p in (index.parts[0], part))
            if first != here:
                raise UserError(
                    f"index.parts: {part.path} has {key} {here}, and {index.parts[0].path} has {first}; the parts of "
                    "a hybrid have the same chunks: give them the same"
                )


def warn_of_smaller_chunks(index: IndexConfig, limits: Sequence[TokenLimit]) -> None:
    """Warn on stderr where an encoder reads less than index.chunk_tokens."""
    for limit in limits:
        if limit.max_text_tokens is not None and index.chunk_tokens > limit.max_text_tokens:
            print(
                f"{index.path}: index.chunk_tokens is {index.chunk_tokens}, and {limit.name} reads {limit.tokens} "
                "tokens, a chunk's title, prefix and special tokens included: chunks are cut smaller, so that all of "
                "them is read. Where the model reads more, a higher index.encoder.max_length leaves them larger.",
                file=sys.stderr,
            )
