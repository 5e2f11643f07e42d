"""Three ways to run the same trajectories, and a gauge of what the engine had to do meanwhile.

pool      sampling/pool.py: a trajectory that ends makes room for the next one
batches   as many at a time, each batch run to the end of its last trajectory before the next one begins
steps     batches, and within one no call is answered before all of its step are: one batched call after another
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from agents.core.resources import Resources
from inference.completion import Completion, Message, SamplingParams
from inference.engine import Engine
from ratchet.progress import Progress
from ratchet.tasks import gather_or_cancel
from retrieval.index import Retriever
from sampling.pool import Task, run_pool

WAYS = ("pool", "batches", "steps")


class Gauge:
    """Requests in flight over time."""

    def __init__(self) -> None:
        self.flying = 0
        self.idle = 0.0
        """Seconds with none."""
        self.request_seconds = 0.0
        self._changed = time.perf_counter()

    def change(self, by: int) -> None:
        now = time.perf_counter()
        spent, self._changed = now - self._changed, now
        self.request_seconds += spent * self.flying
        self.idle += spent if self.flying == 0 else 0.0
        self.flying += by


class Lockstep:
    """The barrier of a batch: the calls of a step begin when every trajectory that is left has one."""

    def __init__(self, trajectories: int) -> None:
        self._left = trajectories
        self._waiting: list[asyncio.Future[None]] = []

    async def step(self) -> None:
        """Return when the step begins."""
        begun = asyncio.get_running_loop().create_future()
        self._waiting.append(begun)
        self._begin_if_all_wait()
        await begun

    def leave(self) -> None:
        """A trajectory is over."""
        self._left -= 1
        self._begin_if_all_wait()

    def _begin_if_all_wait(self) -> None:
        # A trajectory with several calls at once counts more than once; its step then begins the earlier.
        if len(self._waiting) >= self._left:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                one.set_result(None)


class CountedEngine:
    """An engine whose calls are counted, and held to steps where there is a lockstep."""

    def __init__(self, engine: Engine, gauge: Gauge, lockstep: Lockstep | None = None) -> None:
        self.format, self.max_context, self.fingerprint = engine.format, engine.max_context, engine.fingerprint
        self._engine, self._gauge, self._lockstep = engine, gauge, lockstep

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Completion:
        if self._lockstep:
            await self._lockstep.step()
        self._gauge.change(+1)
        try:
            return await self._engine.generate(prompt, params, adapter, messages)
        finally:
            self._gauge.change(-1)

    async def close(self) -> None:
        await self._engine.close()


async def run(
    way: str,
    tasks: Sequence[Task],
    engines: Mapping[str, Engine],
    retriever: Retriever,
    places: int,
    progress: Progress,
    gauge: Gauge,
    resources: Resources | None = None,
) -> None:
    """Run all tasks, never more than `places` at a time."""
    if way == "pool":
        watched: dict[str, Engine] = {name: CountedEngine(engine, gauge) for name, engine in engines.items()}
        await run_pool(tasks, watched, retriever, places, progress, resources)
        return
    for start in range(0, len(tasks), places):
        batch = tasks[start : start + places]
        lockstep = Lockstep(len(batch)) if way == "steps" else None
        held: dict[str, Engine] = {name: CountedEngine(engine, gauge, lockstep) for name, engine in engines.items()}

        async def one(task: Task, held: dict[str, Engine], lockstep: Lockstep | None) -> None:
            await run_pool([task], held, retriever, 1, progress, resources)
            if lockstep:
                lockstep.leave()

        await gather_or_cancel([one(task, held, lockstep) for task in batch])
