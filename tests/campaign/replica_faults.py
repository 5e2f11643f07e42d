"""Faults of two servers of one model, and of the adapters on them, while trajectories are sampled over both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from inference.engine import EngineError
from inference.http import replicas
from inference.http.replicas import ReplicaEngine
from inference.session import session
from ratchet.config import ModelConfig
from ratchet.errors import UserError
from tests.campaign.server_faults import fault
from tests.campaign.trial import Attack, Trial
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.wire_server import FAST, GREEDY, Server, adapter, running

TRAJECTORIES, TURNS = 4, 4
TIMEOUT = 5.0
LOST = 0.2
"""Seconds without new work for a server that was lost."""


class Pool:
    """Two servers, and what may happen to either of them."""

    def __init__(self, servers: list[Server], stack: ExitStack) -> None:
        self.servers, self._stack = servers, stack
        self.down: set[int] = set()

    def die(self, which: int) -> None:
        self.servers[which].stop()
        self.down.add(which)

    def forget(self, which: int) -> None:
        """Its adapters, as a server that was restarted between two requests."""
        self.servers[which].adapters.clear()

    def refuse(self, which: int) -> None:
        """To load any adapter."""
        self.servers[which].judge = lambda body: None
        self.servers[which].lora = False

    def ignore(self, which: int) -> None:
        """Adapters that it has taken."""
        self.servers[which].ignores_adapters = True

    def fail(self, which: int, dice: random.Random) -> None:
        """At a few requests, whatever they ask for."""
        self.servers[which].faults = [fault(dice) for _ in range(dice.randint(1, 4))]

    def heal(self) -> None:
        """Everything is well again; who was down is back without adapters."""
        for which, server in enumerate(self.servers):
            if which in self.down:
                self.servers[which] = again = self._stack.enter_context(running(server.port))
                again.ids = server.ids
            server.faults, server.lora, server.ignores_adapters = [], True, False
        self.down.clear()


@contextmanager
def pools(folder: Path) -> Iterator[Trial]:
    """One to three things happen to the servers while four trajectories ask them, with or without an adapter."""
    tokenizer, lora = str(save_tiny_tokenizer(folder / "model")), str(adapter(folder / "adapter"))

    async def attack(dice: random.Random) -> None:
        named = lora if dice.random() < 0.8 else None
        with ExitStack() as stack:
            servers = [stack.enter_context(running()) for _ in range(2)]
            urls = tuple(server.url for server in servers)
            model = ModelConfig(path=tokenizer, engine="vllm", url=urls, served_name="tiny", timeout=TIMEOUT)
            engine = ReplicaEngine(model, FAST)
            pool = Pool(servers, stack)
            for server in servers:
                server.ids, server.pause = [5, engine.format.end_of_turn], 0.0
            todo, only_deaths = _events(dice, pool)
            problems: list[str] = []

            async def trajectory(number: int) -> None:
                with session(f"question {number}"):
                    for turn in range(TURNS):
                        if todo and dice.random() < 0.3:
                            await asyncio.to_thread(todo.pop())
                        answer = await engine.generate([1, 2, 3, *range(4, 5 + turn)], GREEDY, named)
                        assert answer.finish_reason == "stop"

            async def recorded(number: int) -> None:
                try:
                    await trajectory(number)
                except (EngineError, UserError) as error:
                    problems.append(str(error))

            try:
                await asyncio.gather(*(recorded(number) for number in range(TRAJECTORIES)))
                for said in problems:
                    assert len(said) < 4000 and "\x1b" not in said, said[:300]
                assert not (only_deaths and problems), f"one of two servers was well: {problems[0]}"
                todo.clear()
                pool.heal()
                await asyncio.sleep(LOST)  # so that both are asked again
                fresh = ReplicaEngine(model, FAST)
                try:
                    for one in (engine, fresh):
                        for number in range(TRAJECTORIES):
                            with session(f"later {number}"):
                                assert (await one.generate([1, 2, 3], GREEDY, named)).finish_reason == "stop"
                finally:
                    await fresh.close()
                assert [replica.load for replica in engine.replicas] == [0, 0], "assignments are not given back"
            finally:
                await engine.close()

    with patch.object(replicas, "FAILOVER_PATIENCE", 0.1), patch.object(replicas, "LOST_SECONDS", LOST):
        yield lambda dice: asyncio.run(attack(dice))


def _events(dice: random.Random, pool: Pool) -> tuple[list[Callable[[], None]], bool]:
    """What happens, and whether one server stays well and whole meanwhile."""
    harmless = dice.random() < 0.5
    target = dice.randrange(2)
    if harmless:  # a server dies, or one forgets its adapters: the other one, or a reload, answers
        kinds = [partial(pool.die, target), partial(pool.forget, 1 - target), partial(pool.forget, target)]
        return dice.sample(kinds, dice.randint(1, 3)), True
    kinds = [
        partial(pool.die, target),
        partial(pool.forget, 1 - target),
        partial(pool.refuse, dice.randrange(2)),
        partial(pool.ignore, dice.randrange(2)),
        partial(pool.fail, 0, dice),
        partial(pool.fail, 1, dice),
    ]
    return dice.sample(kinds, dice.randint(1, 3)), False


ATTACKS = (
    Attack(
        "faults of two replicas and of their adapters",
        "every request is answered while one server is well, else one readable error; both are asked again later",
        pools,
        3,
        500,
        60.0,
    ),
)
