"""Whether a server really uses an adapter that it says it has loaded.

Seen in the field: adapters that a server lists and ignores, and outputs of an older version out of a prefix cache. So
the adapter must be listed, and with one fixed prompt its greedy tokens and their log-probabilities must differ from the
base model's. And the base must stay what it is while the adapter is in the same batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, Field, FiniteFloat

from ratchet.core.errors import UserError
from ratchet.core.tasks import gather_or_cancel
from ratchet.inference.http.connection import Connection
from ratchet.inference.http.protocol import ServedModels, parse_response

PROMPT = "The first thing to know is"
"""Short: less than one block of a prefix cache, so that asking twice computes it twice."""
NEW_TOKENS = 8
CHECKS = 3
"""How often base and adapter are asked alone, where an answer with the adapter is close to the base model's."""
MAX_LOGPROB_CHANGE = 0.2
"""The most that a log-probability may change with the batch. Seen where adapters got mixed up: 0.6 to 1.9."""


class _Logprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[FiniteFloat]


class _Choice(BaseModel):
    logprobs: _Logprobs


class _GreedyResponse(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


class Greedy(NamedTuple):
    """A greedy completion: its tokens, and the log-probability of each."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]


async def check_adapter(folder: str, name: str, base: str, server: Connection) -> None:
    """UserError if the server does not list the adapter `name`, or does not keep it and `base` apart.

    EngineError if a response is malformed, and what `Connection.request` raises.
    """
    names = [model.id for model in parse_response(ServedModels, await server.json("GET", "models")).data]
    if name not in names:
        raise UserError(f"{folder}: the server took this adapter but does not list it as {name}; it lists {names}")
    base_alone = await gather_or_cancel([_greedy(base, server), _greedy(base, server)])
    adapted, base_mixed = await gather_or_cancel([_greedy(name, server), _greedy(base, server)])
    if min(_max_logprob_change(answer, base_mixed) for answer in base_alone) > MAX_LOGPROB_CHANGE:
        raise UserError(
            f"{folder}: the base model {base} answers a fixed prompt differently while this adapter is "
            "asked: the server mixes them up within one batch. vLLM's build for CPUs does when all of its slots for "
            "adapters are taken (vllm#48421): raise models.*.serve.adapters above the number of adapters in use, or "
            "merge the adapter into the weights"
        )
    if await _is_ignored(adapted, (*base_alone, base_mixed), name, base, server):
        raise UserError(
            f"{folder}: with this adapter the server answers a fixed prompt exactly as the base model {base} does, "
            f"log-probabilities included: it ignores the adapter, or has a stale one under the name {name}; restart "
            "the server, and see whether it supports the adapter's target modules"
        )


async def _is_ignored(adapted: Greedy, answers: Sequence[Greedy], name: str, base: str, server: Connection) -> bool:
    """Whether the answer with the adapter is the base model's.

    Rounding depends on what else is in a batch. So an answer that is merely close is asked for again, each model alone:
    then a server that ignores the adapter computes the same twice, and one that uses it never does.
    """
    if adapted in answers:
        return True
    if min(_max_logprob_change(adapted, answer) for answer in answers) > MAX_LOGPROB_CHANGE:
        return False
    for _ in range(CHECKS):
        if await _greedy(base, server) == await _greedy(name, server):
            return True
    return False


async def _greedy(model: str, server: Connection) -> Greedy:
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": NEW_TOKENS,
        "temperature": 0,
        "repetition_penalty": 1.0,
        "logprobs": 0,
    }
    logprobs = parse_response(_GreedyResponse, await server.json("POST", "completions", body)).choices[0].logprobs
    return Greedy(tuple(logprobs.tokens), tuple(logprobs.token_logprobs))


def _max_logprob_change(one: Greedy, other: Greedy) -> float:
    """The largest difference of log-probabilities, up to and including the first token that differs."""
    pairs = zip(one.tokens, other.tokens, one.logprobs, other.logprobs, strict=False)
    gap = 0.0
    for mine, theirs, a, b in pairs:
        gap = max(gap, abs(a - b))
        if mine != theirs:
            break
    return gap
