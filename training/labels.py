"""Labels: which tokens of a conversation are learnt.

By default those that the model itself sampled in actions that were parsed (Salemi et al. 2025, arXiv 2506.10844,
section 3.2); with `training.loss_on: sequence` all tokens of the same rows. With `values`, of an action that is a JSON
object only what its author chose is learnt: names, quotes and colons are written by the grammar in decoding. In a small
form these are most of the labels; what their tokens still teach is how the model happened to cut a given text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.core.config import Config
from ratchet.core.records import Conversation, ModelCall, Trajectory
from ratchet.inference.tokenizer import load_tokenizer

_JSON = re.compile(rb'\s+|[{}\[\],:]|"(?:[^"\\]|\\.)*"|[\w.+-]+', re.DOTALL)


@dataclass(frozen=True)
class Labels:
    """Which tokens of the conversations of a training are learnt."""

    thoughts: bool = True
    """What the model thought is learnt as well."""
    whole: bool = False
    """All tokens are learnt, prompts and documents too, of each conversation that has an action to learn."""
    pieces: Sequence[bytes] = ()
    """The bytes of each token of the vocabulary: of actions in JSON the values alone are learnt. Empty: all of it."""

    def mask(self, conversation: Conversation) -> tuple[int, ...]:
        """1 on the tokens that are learnt. The first token of a dialogue has no context to be predicted from."""
        mask = np.zeros(len(conversation.ids), dtype=np.int8)
        for span in conversation.spans:
            if span.sampled and span.parsed and (self.thoughts or not span.thought):
                mask[span.start : span.end] = 1
                if self.pieces and not span.thought:
                    mask[span.start : span.end] = self._in_values(conversation.ids[span.start : span.end])
        if len(mask) and mask[0]:
            raise ValueError(f"conversation of {conversation.role}: its first token is marked as sampled")
        if self.whole and mask.any():
            mask[1:] = 1
        return tuple(mask.tolist())

    def _in_values(self, ids: Sequence[int]) -> list[bool]:
        pieces = [self.pieces[token] for token in ids]
        learnt = value_bytes(b"".join(pieces))
        if learnt is None:
            return [True] * len(ids)
        ends = np.cumsum([len(piece) for piece in pieces])
        return [any(learnt[end - len(piece) : end]) for piece, end in zip(pieces, ends, strict=True)]


def labels_of(config: Config) -> Labels:
    """The labels of a config's training. UserError where they need the model's tokenizer, and it cannot be loaded."""
    training = config.training
    pieces: Sequence[bytes] = ()
    if training.loss_on == "values":
        import xgrammar

        model = config.models[training.model]
        tokenizer = load_tokenizer(model.path, model.revision)
        # The end of a turn among them: not every family's is one of `all_special_ids`.
        special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        known = xgrammar.TokenizerInfo.from_huggingface(tokenizer).decoded_vocab
        pieces = [b"" if token in special else piece for token, piece in enumerate(known)]
    return Labels(training.thoughts == "trained", training.loss_on == "sequence", pieces)


def value_bytes(text: bytes) -> list[bool] | None:
    """True on the bytes of a JSON object that its author chose, whatever the schema: the values, the quotes that end
    them, and what follows a value or begins a list, which says whether more is to come. None for any other text."""
    learnt = [False] * len(text)
    ends: list[bytes] = []
    at, key, decides = 0, False, False
    for token in _JSON.finditer(text):
        written, start, end = token[0], token.start(), token.end()
        if start != at or not (ends or (written == b"{" and not text[:start].strip()) or written.isspace()):
            return None
        at = end
        if written.isspace():
            continue
        learnt[start] = decides
        decides = False
        if written in (b"{", b"["):
            ends.append(b"}" if written == b"{" else b"]")
            key, decides = written == b"{", written == b"["
        elif written in (b"}", b"]"):
            if ends.pop() != written:
                return None
            key, decides = False, bool(ends)
        elif written == b",":
            key = ends[-1] == b"}"
        elif written == b":":
            key = False
        elif not key:
            opening = written.startswith(b'"') and not learnt[start]
            learnt[start + opening : end] = [True] * (end - start - opening)
            decides = True
    return learnt if at == len(text) and not ends and text.strip() else None


def side_calls(trajectory: Trajectory, learnt: str) -> set[int]:
    """The numbers of the conversations that `training.conversations` leaves out of training: calls that a program makes
    beside its work, for a title, a summary or a check of its quota. `learnt`: its value.

    The final answer is in the reply that ends with it, or else has it; of several, in the last one with tools. Only a
    program's conversations tell of tools, so no other system's are left out by default.
    """
    talks = trajectory.conversations
    offered = {number for number, talk in enumerate(talks) if talk.tool_calls is not None}
    if learnt == "all" or (learnt == "main" and not offered):
        return set()
    called = {number for number in offered if talks[number].tool_calls}
    given = [text.strip() for text in (trajectory.answer, trajectory.explanation) if text.strip()]

    def rank(call: ModelCall) -> tuple[bool, bool, bool]:
        ends = any(call.text.rstrip().endswith(text) for text in given)
        return ends, any(text in call.text for text in given), call.conversation in offered

    final = max(reversed(trajectory.model_calls), key=rank, default=None)  # of equals the first here
    last = {final.conversation} if final else set()
    return set(range(len(talks))) - {"main": called | last, "tools": called, "answer": last}[learnt]
