"""The next token of a sequence: nucleus sampling, under a grammar where the output follows a JSON schema.

The grammar's token masks are xgrammar's; the sampler is a Numba kernel.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xgrammar

from ratchet.core.numba_cache import inner, njit
from ratchet.inference.engine import EngineError
from ratchet.inference.local.linear import MOST_ALLOWED
from ratchet.inference.local.vectors import FAST_MATH, Array, exp
from ratchet.inference.schemas import SchemaRefused
from ratchet.inference.token_format import control_names, control_pattern, cut_control_tokens

NO_TOKEN, NOT_FINITE = -1, -2
"""`sample` returns these in place of a token."""
LARGEST = np.float32(1e30)


class Grammars:
    """Compiled grammars of one tokenizer; compiling takes milliseconds to two seconds, so each schema is kept."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_ids: Sequence[int]) -> None:
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary, stop_token_ids=list(end_ids))
        self._compiler = xgrammar.GrammarCompiler(info)
        self._cuts = Cuts(tokenizer, info.decoded_vocab)
        self._compiled: dict[str, Any] = {}
        self._lock = threading.Lock()

    def is_compiled(self, schema: dict[str, Any] | str) -> bool:
        return _text(schema) in self._compiled

    def compile(self, schema: dict[str, Any] | str) -> None:
        """Compile a schema, or a grammar; threads may call it at once. SchemaRefused where xgrammar cannot."""
        text = _text(schema)
        with self._lock:
            if text in self._compiled:
                return
            try:
                # Free white space makes small models write white space until the token limit.
                compiled = (
                    self._compiler.compile_grammar(text)
                    if isinstance(schema, str)
                    else self._compiler.compile_json_schema(text, any_whitespace=False)
                )
            except RuntimeError as error:
                raise SchemaRefused(f"this JSON schema cannot constrain decoding: {error}: {text}") from error
            if not always_ends(str(compiled.grammar)):  # of which xgrammar would never end to say what is forced
                raise SchemaRefused(f"a part of this JSON schema requires itself, so no value fits that part: {text}")
            self._compiled[text] = compiled

    def matcher(self, schema: dict[str, Any] | str) -> Matcher:
        """Return a matcher at the start of a compiled schema or grammar."""
        return Matcher(self._compiled[_text(schema)], self._cuts, has_controls=isinstance(schema, str))


def always_ends(grammar: str) -> bool:
    """Say whether a text that fits a grammar can end wherever it has begun. It is read as xgrammar prints it."""
    _, *parts = RULE.split(grammar)
    rules = dict(zip(parts[::2], parts[1::2], strict=True))
    open_rules = {
        name: [set(NAME.findall(option)) & rules.keys() for option in TERMINAL.sub("", body).split(" (=")[0].split("|")]
        for name, body in rules.items()
    }
    finite = set[str]()
    while found := {name for name, options in open_rules.items() if any(option <= finite for option in options)}:
        finite |= found
        for name in found:
            del open_rules[name]
    return not open_rules


RULE = re.compile(r"^(\w+) ::= ", re.MULTILINE)
TERMINAL = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]')
NAME = re.compile(r"[a-zA-Z_]\w*")


def _text(schema: dict[str, Any] | str) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


class Cuts:
    """The tokens in which a tokenizer cuts the texts that grammars force."""

    def __init__(self, tokenizer: Any, pieces: Sequence[bytes]) -> None:
        """`pieces`: the bytes of each token of the vocabulary."""
        # One of its own: the caller's changes its settings from call to call, in another thread.
        self._tokenizer = copy.deepcopy(tokenizer.backend_tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = False
        names = control_names(tokenizer)
        self._controls, self._control_pattern = frozenset(names), control_pattern(names)
        self.pieces = pieces
        self.vocabulary = len(pieces)
        self.of = functools.lru_cache(MOST_TEXTS)(self._cut)

    def _cut(self, text: str, has_controls: bool) -> list[int]:
        """Return the tokens of a text, up to where a tokenizer would rewrite it. `has_controls`: control tokens are
        read in it, as in a template's own text; else they are split, each behind its first letter."""
        tokens = self._encode(text)
        if not has_controls and not self._controls.isdisjoint(tokens):
            tokens = [
                token for piece in cut_control_tokens(text, self._control_pattern) for token in self._encode(piece)
            ]
        return tokens[: self._same(tokens, text)]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        same = self._same(ids, text)
        if same == len(ids):
            return ids
        # Tokenizers like Llama 2's write a space before a text; here other text comes before it.
        before = self._tokenizer.encode("\n", add_special_tokens=False).ids
        behind: list[int] = self._tokenizer.encode("\n" + text, add_special_tokens=False).ids[len(before) :]
        return behind if self._same(behind, text) > same else ids

    def _same(self, tokens: Sequence[int], text: str) -> int:
        """Count the first tokens that are the beginning of a text."""
        whole, at = text.encode(), 0
        for count, token in enumerate(tokens):
            piece = self.pieces[token] if token < self.vocabulary else b""  # a model may have fewer than its tokenizer
            if not piece or not whole.startswith(piece, at):
                return count
            at += len(piece)
        return len(tokens)


MOST_TEXTS = 10000
"""Whose tokens are remembered."""


@dataclass(frozen=True)
class Choice:
    """The tokens that may come at one place of a completion."""

    mask: Array | None = None
    """Bits of the tokens that a grammar allows, 32 per integer; None: there is none, or `allowed` says it."""
    allowed: Array | None = None
    """Ids of the tokens that a grammar allows, where they are few: the logits of no others are computed."""


FREE = Choice()


class Matcher:
    """The state of one completion in its grammar."""

    def __init__(self, compiled: Any, cuts: Cuts, has_controls: bool) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._mask: torch.Tensor = xgrammar.allocate_token_bitmask(1, cuts.vocabulary)
        self._cuts = cuts
        self._has_controls = has_controls
        self.choice = FREE
        """What `forced` has left to be sampled."""

    def forced(self) -> list[int]:
        """Take what the grammar leaves no choice about, and return its tokens (jump-forward decoding, Zheng et al.
        2023, arXiv 2312.07104, section 3).

        The tokens are the tokenizer's. The last one may only be the beginning of what the tokenizer would write
        together with the text after it, as the space before `true`: there `choice` has the longer ones as well.
        EngineError if the grammar has no next state.
        """
        taken: list[int] = []
        while not self._matcher.is_terminated():
            tokens = self._cuts.of(self._forced_text(), self._has_controls)
            count = 0
            while count < len(tokens) - 1 and self._matcher.accept_token(tokens[count]):
                count += 1
            taken += tokens[:count]
            mask = self._fill()
            allowed = few_tokens(mask, self._cuts.vocabulary)
            if allowed is not None and tokens and count == len(tokens) - 1:
                begun = self._cuts.pieces[tokens[-1]]
                longer = [token for token in allowed if self._cuts.pieces[token].startswith(begun)]
                allowed = np.array(longer) if longer else allowed
            if allowed is None or len(allowed) != 1:
                self.choice = Choice(mask) if allowed is None else Choice(allowed=allowed)
                break
            taken += allowed.tolist()
            self.accept(taken[-1])
        return taken

    def _forced_text(self) -> str:
        try:
            text: str = self._matcher.find_jump_forward_string()
        except UnicodeDecodeError:  # it begins inside a character, of which the model has written the first bytes
            return ""
        return text

    def _fill(self) -> Array:
        try:
            self._matcher.fill_next_token_bitmask(self._mask)
        except RuntimeError as error:
            raise EngineError(f"the grammar has no next state: {error}") from error
        return self._mask.numpy()[0].copy()

    def accept(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise EngineError(f"the grammar does not accept the token {token}, which its mask allows")


def few_tokens(mask: Array, size: int) -> Array | None:
    """Ids below `size` whose bits in `mask`, 32 per integer, are set; None where they are more than MOST_ALLOWED."""
    if np.bitwise_count(mask.view(np.uint32)).sum() > MOST_ALLOWED:
        return None
    tokens = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    return tokens[tokens < size]


@inner(error_model="numpy")
def _likeliest(ids: Array, weights: Array, count: int, mass: float) -> tuple[int, float]:  # pragma: no cover - compiled
    """Put the fewest likeliest of the first `count` tokens whose weights sum to more than `mass`, or all, first, the
    least likely of them last; returns how many they are, and the sum. Of equal ones the lower ids are the likelier.

    Hoare's selection, by sums: a vocabulary is not sorted, which takes as long as all else of a small model's token.
    """
    low, high, before = 0, count, 0.0
    while low < high:
        middle = (low + high) >> 1
        token, weight = ids[middle], weights[middle]
        ids[middle], weights[middle] = ids[high - 1], weights[high - 1]
        at, held = low, 0.0
        for i in range(low, high - 1):
            if weights[i] > weight or (weights[i] == weight and ids[i] < token):
                held += weights[i]
                ids[at], ids[i] = ids[i], ids[at]
                weights[at], weights[i] = weights[i], weights[at]
                at += 1
        ids[high - 1], weights[high - 1] = ids[at], weights[at]
        ids[at], weights[at] = token, weight
        if before + held > mass:
            high = at
        else:
            low, before = at + 1, before + held + weight
            if before > mass:
                break
    return low, before


@inner(fastmath=FAST_MATH, error_model="numpy")
def _possible(
    logits: Array, mask: Array, masked: bool, size: int, out: Array
) -> tuple[float, int, int]:  # pragma: no cover - compiled
    """Set out to the logits of possible tokens, and -inf for the others; their maximum, whether there are any, and
    whether a logit is NaN or infinite."""
    top: Any = np.float32(-np.inf)
    possible = wrong = 0
    if not masked:
        for v in range(size):
            logit = logits[v]
            wrong |= not logit < np.inf
            out[v] = logit
            top = max(top, logit)
        return top, size, wrong
    for word in range((size + 31) // 32):
        bits = mask[word]
        for bit in range(min(32, size - 32 * word)):
            logit = logits[32 * word + bit]
            wrong |= not logit < np.inf
            allowed = (bits >> bit) & 1
            possible |= allowed
            logit = logit if allowed else np.float32(-np.inf)
            out[32 * word + bit] = logit
            top = max(top, logit)
    return top, possible, wrong


@inner(fastmath=FAST_MATH, error_model="numpy")
def _weights(logits: Array, size: int, top: float, inverse: float) -> float:  # pragma: no cover - compiled
    """Make logits what their tokens weigh at a temperature of 1 / inverse, beside the likeliest; returns the sum."""
    total: Any = 0.0
    for v in range(size):
        x = (logits[v] - top) * inverse
        weight = exp(x) if x >= np.float32(-87.0) else np.float32(0.0)
        logits[v] = weight
        total += weight
    return total


@inner(fastmath=FAST_MATH, error_model="numpy")
def _held(weights: Array, size: int, cut: float) -> tuple[float, int]:  # pragma: no cover - compiled
    held: Any = 0.0
    count = 0
    for v in range(size):
        taken = weights[v] >= cut and weights[v] > np.float32(0.0)
        held += weights[v] if taken else np.float32(0.0)
        count += taken
    return held, count


@njit(nogil=True, error_model="numpy", cache=True)
def sample(
    logits: Array, mask: Array, masked: bool, temperature: float, top_p: float, draw: float, scratch: Array
) -> int:  # pragma: no cover - compiled
    """A token of a row of logits [vocabulary] by nucleus sampling (Holtzman et al. 2020), or the best at T = 0.

    `mask` holds 32 tokens per integer, as xgrammar writes it; only tokens whose bit is set are possible when `masked`.
    `draw` is uniform in [0, 1). `scratch` is a float32 row to write in. The nucleus is exact: the candidate set is
    widened until it holds top_p of the mass. Ties go to the lower token id. A logit of -inf rules its token out.

    Returns NO_TOKEN where the mask allows none, and NOT_FINITE where the logits are no distribution: a row with NaN or
    +inf anywhere, or whose possible tokens are all ruled out. Only tokens that all rows hold are looked at.
    """
    size = min(logits.shape[0], scratch.shape[0])
    if masked:
        size = min(size, mask.shape[0] * 32)
    top, possible, wrong = _possible(logits, mask, masked, size, scratch)
    if wrong:
        return NOT_FINITE
    if not possible:
        return NO_TOKEN
    if top == -np.inf:
        return NOT_FINITE
    if not temperature > 0.0:
        best = 0
        while scratch[best] != top:
            best += 1
        return best
    total = _weights(scratch, size, top, min(np.float32(1.0 / temperature), LARGEST))  # infinity times 0 is no number
    goal = top_p * total
    cut: Any = np.float32(1e-2)
    while True:
        held, count = _held(scratch, size, cut)
        if held >= goal or cut == 0.0:
            break
        cut = cut * np.float32(0.05) if cut > 1e-12 else np.float32(0.0)
    ids = np.empty(count, np.int64)
    weights = np.empty(count, np.float64)
    at = 0
    for v in range(size):
        if scratch[v] >= cut and scratch[v] > 0.0:
            ids[at] = v
            weights[at] = scratch[v]
            at += 1
    kept, nucleus = _likeliest(ids, weights, len(ids), goal * (1 - 1e-12))  # sums are rounded
    drawn, _ = _likeliest(ids, weights, kept, draw * nucleus)
    return ids[drawn - 1]


@njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", cache=True)
def log_probability(logits: Array, token: int) -> float:  # pragma: no cover - compiled
    """log softmax(logits)[token] of a row of logits, of which some may be -inf."""
    top = logits[0]
    for v in range(logits.shape[0]):
        top = max(top, logits[v])
    total = 0.0
    for v in range(logits.shape[0]):
        total += exp(logits[v] - top)
    return logits[token] - top - math.log(total)
