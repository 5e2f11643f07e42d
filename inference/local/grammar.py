"""JSON constrained by a schema: token masks by xgrammar."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
import xgrammar

from inference.engine import EngineError
from ratchet.errors import UserError


class Grammars:
    """Compiled grammars of one tokenizer; compiling takes milliseconds to a second, so each schema is kept."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_of_turn: int) -> None:
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary, stop_token_ids=[end_of_turn])
        self._compiler = xgrammar.GrammarCompiler(info)
        self._vocabulary = vocabulary
        self._compiled: dict[str, Any] = {}

    def matcher(self, schema: dict[str, Any]) -> Matcher:
        """A matcher at the start of the schema. Raises UserError for a schema that xgrammar cannot compile."""
        text = json.dumps(schema)
        if text not in self._compiled:
            try:
                # Free white space invites small models to write blanks until the token limit.
                self._compiled[text] = self._compiler.compile_json_schema(text, any_whitespace=False)
            except RuntimeError as error:
                raise UserError(f"this JSON schema cannot constrain decoding: {error}: {text}") from error
        return Matcher(self._compiled[text], self._vocabulary)


class Matcher:
    """One completion's place in its grammar."""

    def __init__(self, compiled: Any, vocabulary: int) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._mask: torch.Tensor = xgrammar.allocate_token_bitmask(1, vocabulary)

    def mask(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Bits of the tokens that may come next, 32 a word. EngineError where the grammar is at an end."""
        try:
            self._matcher.fill_next_token_bitmask(self._mask)
        except RuntimeError as error:
            raise EngineError(f"the grammar cannot go on: {error}") from error
        return self._mask.numpy()[0]

    def accept(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise EngineError(f"the grammar does not take the token {token}, which its mask allows")
