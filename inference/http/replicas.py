"""One model behind several servers: every trajectory stays on one of them, and moves when that one is lost.

A trajectory's turns extend one prefix, which only the server that answered before has in its cache, and the samples of
a question share a prefix. So a trajectory stays where it is, and a new one prefers the servers that already have its
question, as long as they carry no more than SLACK times their share of the trajectories (consistent hashing with
bounded loads: Mirrokni et al. 2016, without the hash, for we know all loads); else it goes to the least loaded one.
With few trajectories in flight this balances load; with many it nearly always hits the cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
from ratchet.core.http.retry import Backoff
from ratchet.core.tasks import gather_or_cancel
from ratchet.inference.completion import Completion, Message, SamplingParams
from ratchet.inference.http.connection import HOW_TO_START, RequestDropped, ServerLost, problem_summary
from ratchet.inference.http.engine import HttpEngine
from ratchet.inference.session import Session, current_session, session

SLACK = 1.25
"""How far above its share of the trajectories a server's load may go to keep a question's samples together."""
FAILOVER_PATIENCE = 2.0
"""Seconds that requests wait for a lost server while another one is up."""
LOST_SECONDS = 30.0
"""Seconds until new work is sent to a lost server again."""
MAX_QUESTIONS = 4096
"""The number of questions whose servers are remembered; those in flight are far fewer."""

logger = logging.getLogger(__name__)


class Replica:
    """One of the servers, and its load."""

    def __init__(self, engine: HttpEngine) -> None:
        self.engine = engine
        self.load = 0
        """Trajectories that are assigned to this server."""
        self.lost_until = 0.0

    def release(self) -> None:
        self.load -= 1


class ReplicaEngine:
    """See `inference.engine.Engine`. `models.*.concurrency` and `timeout` hold for each server."""

    def __init__(self, model: ModelConfig, backoff: Backoff | None = None, served: bool = False) -> None:
        assert isinstance(model.url, tuple)
        self.replicas: list[Replica] = []
        for url in dict.fromkeys(model.url):
            chat = self.replicas[0].engine.format if self.replicas else None
            one = HttpEngine(model.model_copy(update={"url": url}), backoff, served, chat)
            self.replicas.append(Replica(one))
        for replica in self.replicas:
            replica.engine.connection.patience = partial(self._patience, replica)
        first = self.replicas[0].engine
        self.format, self.fingerprint = first.format, first.fingerprint
        self.max_context = model.max_context
        """Lowered to the minimum of all at the first request: it must not matter where a trajectory is answered."""
        self._timeout = model.timeout
        self._setup = asyncio.Lock()
        self._connected = False
        self._replicas_of: OrderedDict[str, set[Replica]] = OrderedDict()

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Completion:
        await self._connect()
        with contextlib.ExitStack() as stack:
            # A request outside of a trajectory, such as a judge's, goes where requests with the same prompt went.
            current = current_session() or stack.enter_context(session(f"prompt {hash(tuple(prompt))}"))
            first_loss: float | None = None
            while True:
                replica = self._assign(current)
                try:
                    return await replica.engine.generate(prompt, params, adapter, messages)
                except (ServerLost, RequestDropped) as error:
                    now = _now()
                    first_loss = now if first_loss is None else first_loss
                    self._mark_lost(replica, error)
                    if not self._available() or now - first_loss > self._timeout:
                        raise

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.engine.close()

    async def _connect(self) -> None:
        """At the first request: check that every server serves the model; one that is not up yet may come later."""
        if self._connected:
            return
        async with self._setup:
            if self._connected:
                return

            async def connect(replica: Replica) -> ServerLost | None:
                try:
                    await replica.engine.connect()
                except ServerLost as error:
                    return error
                return None

            absent = await gather_or_cancel([connect(replica) for replica in self.replicas])
            problems = [error for error in absent if error]
            if len(problems) == len(self.replicas):
                raise UserError(
                    "\n".join([*map(problem_summary, problems), f"None of the servers answers; {HOW_TO_START}"])
                )
            for replica, error in zip(self.replicas, absent, strict=True):
                if error:
                    self._mark_lost(replica, error)
            self.max_context = min(replica.engine.max_context for replica in self.replicas)
            for replica in self.replicas:
                replica.engine.max_context = self.max_context
            self._connected = True

    def _assign(self, current: Session) -> Replica:
        """The session's server; a new one is chosen where it has none, or where it is lost and another one is up."""
        up = self._available()
        old = current.assignments.get(id(self))
        if isinstance(old, Replica):
            if old in up or not up:
                return old
            old.release()
        chosen = self._choose(current.question, up or self.replicas)
        chosen.load += 1
        current.assignments[id(self)] = chosen
        return chosen

    def _choose(self, question: str, among: Sequence[Replica]) -> Replica:
        known = self._replicas_of.setdefault(question, set())
        self._replicas_of.move_to_end(question)
        if len(self._replicas_of) > MAX_QUESTIONS:
            self._replicas_of.popitem(last=False)
        share = (sum(replica.load for replica in among) + 1) / len(among)
        near = [replica for replica in among if replica in known and replica.load < math.ceil(SLACK * share)]
        now = _now()
        chosen = min(near or among, key=lambda replica: (max(0.0, replica.lost_until - now), replica.load))
        known.add(chosen)
        return chosen

    def _available(self) -> list[Replica]:
        now = _now()
        return [replica for replica in self.replicas if replica.lost_until <= now]

    def _patience(self, mine: Replica) -> float:
        return FAILOVER_PATIENCE if any(replica is not mine for replica in self._available()) else self._timeout

    def _mark_lost(self, replica: Replica, error: Exception) -> None:
        if replica.lost_until <= _now():
            logger.warning("%s; its trajectories go elsewhere for %g s", problem_summary(error), LOST_SECONDS)
        replica.lost_until = _now() + LOST_SECONDS


def _now() -> float:
    return asyncio.get_running_loop().time()
