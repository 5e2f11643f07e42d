"""By whose tokens the chunks of a config's index are measured."""

from __future__ import annotations

import sys
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from ratchet.core.config import WORDS, IndexConfig, ModelConfig, written
from ratchet.core.errors import UserError
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.retrieval.encoders.limits import TokenLimit

UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}"
WORD = rf"[{UNSPACED}]|(?:(?![{UNSPACED}])[\p{{L}}\p{{M}}\p{{N}}]){{1,8}}|[^\s\p{{L}}\p{{M}}\p{{N}}]"
"""What counts as one token with `index.tokenizer: words`: up to eight letters and digits of a word, as most tokens of a
model hold no more; one character of Chinese and Japanese, which have no spaces; one of anything else but a space."""


def chunk_tokenizer_of(index: IndexConfig, agent: ModelConfig | None, limit: TokenLimit | None) -> tuple[Any, str]:
    """A tokenizer and its name: index.tokenizer; else the encoder's own; else the agent's."""
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
    """The tokenizer of `index.tokenizer: words`."""
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
