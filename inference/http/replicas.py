"""One model behind several servers: every trajectory keeps to one of them, and moves when that one is lost.

A trajectory's turns extend one prefix, which only the server that answered before has in its cache; and the samples of
a question begin alike. So a trajectory stays where it is, and a new one prefers the servers that already have its
question, as long as they carry no more than SLACK times their share of the trajectories (consistent hashing with
bounded loads: Mirrokni et al. 2016, without the hash, for we know all loads); else it goes to the least loaded one.
With few trajectories in flight this is plain balance, with many it is nearly always the cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from inference.engine import Completion, Message, SamplingParams
from inference.http.connection import HOW_TO_START, Broken, ServerLost, what_happened
from inference.http.engine import HttpEngine, Stats
from inference.session import Session, current_session, session
from ratchet.config import ModelConfig
from ratchet.errors import UserError
from ratchet.http.retry import Backoff
from ratchet.tasks import together

SLACK = 1.25
"""How far above its share of the trajectories a server may go to have a question's samples together."""
QUICK = 2.0
"""Seconds for which a lost server is waited for while another one is there."""
TRY_AGAIN = 30.0
"""Seconds until new work goes to a lost server again, to see whether it is back."""
REMEMBERED = 4096
"""Questions whose servers are remembered; those in flight are far fewer."""

logger = logging.getLogger(__name__)


class Replica:
    """One of the servers, and what it carries."""

    def __init__(self, engine: HttpEngine) -> None:
        self.engine = engine
        self.load = 0
        """Trajectories that have their place here."""
        self.lost_until = 0.0

    def leave(self) -> None:
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
        """Lowered to the least of all at the first request: it must not matter where a trajectory is answered."""
        self._timeout = model.timeout
        self._setup = asyncio.Lock()
        self._met = False
        self._homes: OrderedDict[str, set[Replica]] = OrderedDict()

    @property
    def stats(self) -> dict[str, Stats]:
        """By address."""
        return {replica.engine.connection.url: replica.engine.stats for replica in self.replicas}

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Completion:
        await self._meet()
        with contextlib.ExitStack() as stack:
            # A request of no trajectory, such as one of a judge's runs, goes where its equals went.
            here = current_session() or stack.enter_context(session(f"prompt {hash(tuple(prompt))}"))
            first_loss: float | None = None
            while True:
                replica = self._place(here)
                try:
                    return await replica.engine.generate(prompt, params, adapter, messages)
                except (ServerLost, Broken) as error:
                    now = _now()
                    first_loss = now if first_loss is None else first_loss
                    self._lose(replica, error)
                    if not self._up() or now - first_loss > self._timeout:
                        raise

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.engine.close()

    async def _meet(self) -> None:
        """At the first request: every server must serve the model; one that is not there yet may come later."""
        if self._met:
            return
        async with self._setup:
            if self._met:
                return

            async def greet(replica: Replica) -> ServerLost | None:
                try:
                    await replica.engine.meet()
                except ServerLost as error:
                    return error
                return None

            absent = await together([greet(replica) for replica in self.replicas])
            problems = [error for error in absent if error]
            if len(problems) == len(self.replicas):
                raise UserError("\n".join([*map(what_happened, problems), f"That is all of them; {HOW_TO_START}"]))
            for replica, error in zip(self.replicas, absent, strict=True):
                if error:
                    self._lose(replica, error)
            self.max_context = min(replica.engine.max_context for replica in self.replicas)
            for replica in self.replicas:
                replica.engine.max_context = self.max_context
            self._met = True

    def _place(self, here: Session) -> Replica:
        """The session's server; one is chosen where it has none, or has lost it and another one is there."""
        up = self._up()
        old = here.places.get(id(self))
        if isinstance(old, Replica):
            if old in up or not up:
                return old
            old.leave()
        chosen = self._choose(here.question, up or self.replicas)
        chosen.load += 1
        here.places[id(self)] = chosen
        return chosen

    def _choose(self, question: str, among: Sequence[Replica]) -> Replica:
        homes = self._homes.setdefault(question, set())
        self._homes.move_to_end(question)
        if len(self._homes) > REMEMBERED:
            self._homes.popitem(last=False)
        share = (sum(replica.load for replica in among) + 1) / len(among)
        near = [replica for replica in among if replica in homes and replica.load < math.ceil(SLACK * share)]
        now = _now()
        chosen = min(near or among, key=lambda replica: (max(0.0, replica.lost_until - now), replica.load))
        homes.add(chosen)
        return chosen

    def _up(self) -> list[Replica]:
        now = _now()
        return [replica for replica in self.replicas if replica.lost_until <= now]

    def _patience(self, mine: Replica) -> float:
        return QUICK if any(replica is not mine for replica in self._up()) else self._timeout

    def _lose(self, replica: Replica, error: Exception) -> None:
        if replica.lost_until <= _now():
            logger.warning("%s; its trajectories go elsewhere for %g s", what_happened(error), TRY_AGAIN)
        replica.lost_until = _now() + TRY_AGAIN


def _now() -> float:
    return asyncio.get_running_loop().time()
