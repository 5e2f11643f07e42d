"""Adapters that a server lists and ignores are told from those that change little, however batches round."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from ratchet.core.errors import UserError
from ratchet.inference.http.adapter_check import check_adapter
from ratchet.inference.http.connection import Connection


class Server(Connection):
    """Answers greedily; in a batch of two, rounding moves log-probabilities a little and never twice the same way."""

    def __init__(self, effect: float) -> None:
        self.effect, self.asked, self.noise = effect, 0, count(1)

    async def json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        if body is None:
            return {"data": [{"id": "base"}, {"id": "mine"}]}
        self.asked += 1
        await asyncio.sleep(0)
        noise = next(self.noise) * 1e-5 if self.asked > 1 else 0.0
        self.asked -= 1
        logprob = -0.5 + noise + (self.effect if body["model"] == "mine" else 0.0)
        return {"choices": [{"logprobs": {"tokens": ["one"] * 8, "token_logprobs": [logprob] * 8}}]}


async def test_an_ignored_adapter_is_noticed_although_batches_round() -> None:
    with pytest.raises(UserError, match="exactly as the base model base does"):
        await check_adapter("folder", "mine", "base", Server(0.0))


@pytest.mark.parametrize("effect", [1e-6, -0.01, 1.0])
async def test_an_adapter_may_change_little(effect: float) -> None:
    await check_adapter("folder", "mine", "base", Server(effect))
