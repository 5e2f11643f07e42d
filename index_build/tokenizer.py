"""By whose tokens the chunks of a config's index are measured."""

from __future__ import annotations

import sys
from typing import Any

from inference.tokenizer import load_tokenizer
from ratchet.config import IndexConfig, ModelConfig, written
from ratchet.errors import UserError
from retrieval.encoders.limits import TokenLimit


def chunk_tokenizer_of(index: IndexConfig, agent: ModelConfig | None, limit: TokenLimit | None) -> tuple[Any, str]:
    """A tokenizer of transformers and its name: index.tokenizer; else the encoder's own; else the agent's."""
    if index.tokenizer is not None:
        return load_tokenizer(index.tokenizer, None), written(index.tokenizer)
    if limit is not None and getattr(limit.tokenizer, "is_fast", False):
        return limit.tokenizer, written(limit.name)
    if agent is None:
        raise UserError("index.tokenizer is not set and there is no models.agent to take it from; set index.tokenizer")
    return load_tokenizer(agent.path, agent.revision), written(agent.path)


def warn_of_smaller_chunks(index: IndexConfig, limit: TokenLimit | None) -> None:
    """Warn on stderr where the encoder reads less than index.chunk_tokens."""
    if limit is not None and limit.max_text_tokens is not None and index.chunk_tokens > limit.max_text_tokens:
        print(
            f"{index.path}: index.chunk_tokens is {index.chunk_tokens}, and {limit.name} reads {limit.tokens} "
            "tokens, a chunk's title, prefix and special tokens included: chunks are cut smaller, so that all of "
            "them is read. A higher index.encoder.max_length of a sparse encoder that reads more leaves them larger.",
            file=sys.stderr,
        )
