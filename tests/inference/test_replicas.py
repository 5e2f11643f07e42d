"""Several servers of one model: trajectories keep to one, are spread evenly, and move when theirs is lost."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ratchet.agents.core.context import Job, RunContext
from ratchet.agents.core.system import load_system
from ratchet.core.config import ModelConfig, SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question
from ratchet.inference.adapters import adapter_digest
from ratchet.inference.completion import Completion
from ratchet.inference.engines import open_engine, open_engines
from ratchet.inference.http import replicas
from ratchet.inference.http.connection import ServerLost
from ratchet.inference.http.replicas import ReplicaEngine
from ratchet.inference.session import Session, current_session, session
from ratchet.sampling.pool import run_episode
from tests.helpers.tiny_index import tiny_index
from tests.helpers.wire_server import FAST, GREEDY, Server, adapter, running

pytestmark = pytest.mark.server


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running()) for _ in range(3)]


@asynccontextmanager
async def opened(servers: list[Server], folder: str, **settings: Any) -> AsyncIterator[ReplicaEngine]:
    urls = tuple(server.url for server in servers)
    values = {"engine": "vllm", "url": urls, "served_name": "tiny", "timeout": 5.0} | settings
    engine = ReplicaEngine(ModelConfig(path=folder, **values), FAST)
    for server in servers:
        server.ids = [5, engine.format.end_of_turn]
    yield engine
    await engine.close()


async def trajectory(engine: ReplicaEngine, question: str, turns: int = 3, pause: float = 0.02) -> list[Completion]:
    with session(question):
        answers = []
        for turn in range(turns):
            answers.append(await engine.generate([1, 2, 3, *range(4, 4 + turn)], GREEDY))
            await asyncio.sleep(pause)
        return answers


def counts(servers: list[Server]) -> list[int]:
    return [len(server.asked()) for server in servers]


async def test_a_trajectory_keeps_to_one_server_and_trajectories_are_spread(servers: list[Server], folder: str) -> None:
    async with opened(servers, folder) as engine:
        await asyncio.gather(*(trajectory(engine, f"question {n}", turns=4) for n in range(6)))
        assert counts(servers) == [8, 8, 8]
        assert [replica.load for replica in engine.replicas] == [0, 0, 0], "assignments are given back"


async def test_tasks_of_a_trajectory_share_its_server(servers: list[Server], folder: str) -> None:
    async with opened(servers, folder) as engine:
        with session("one"):
            await asyncio.gather(*(engine.generate([1, 2, n], GREEDY) for n in range(6)))
        assert sorted(counts(servers)) == [0, 0, 6]


async def test_samples_of_a_question_meet_while_their_server_carries_no_more_than_its_share(
    servers: list[Server], folder: str
) -> None:
    async with opened(servers, folder) as engine:
        for _ in range(4):  # one at a time: nobody else is there, so they follow each other
            await trajectory(engine, "q", turns=1)
        assert sorted(counts(servers)) == [4, 0, 0] or sorted(counts(servers)) == [0, 0, 4]
        # All at once: one server would idle two others, so they part.
        await asyncio.gather(*(trajectory(engine, "other", turns=1) for _ in range(12)))
        loads = [count - before for count, before in zip(counts(servers), (4, 0, 0), strict=True)]
        assert max(loads) <= 6 and min(loads) >= 3, loads


async def test_in_a_long_run_most_samples_of_a_question_share_a_server(servers: list[Server], folder: str) -> None:
    """Places alone, without requests: 24 trajectories in flight, the oldest makes room for the next one."""
    async with opened(servers, folder) as engine:
        flying: deque[Session] = deque()
        where: dict[str, list[int]] = {}
        for question in [f"question {n}" for n in range(30) for _ in range(8)]:
            if len(flying) == 24:
                flying.popleft().end()
            flying.append(Session(question))
            where.setdefault(question, []).append(engine.replicas.index(engine._assign(flying[-1])))
            assert max(replica.load for replica in engine.replicas) <= 10, "a quarter above its share"
        together = sum(max(map(assignments.count, assignments)) for assignments in where.values())
        assert together >= 0.85 * 240, where
        assert min(Counter(n for assignments in where.values() for n in assignments).values()) >= 70


async def test_equal_requests_of_no_trajectory_meet_too(servers: list[Server], folder: str) -> None:
    async with opened(servers, folder) as engine:
        for prompt in ([1, 2, 3], [4, 5, 6], [1, 2, 3], [1, 2, 3]):
            await engine.generate(prompt, GREEDY)
        for server in servers:
            prompts = [request.body["prompt"] for request in server.asked()]
            assert len(set(map(tuple, prompts))) <= 1 or [1, 2, 3] not in prompts or prompts.count([1, 2, 3]) == 3
        assert current_session() is None


async def test_trajectories_of_a_lost_server_move_at_once_with_their_adapter(
    servers: list[Server],
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(replicas, "FAILOVER_PATIENCE", 0.05)
    trained = str(adapter(tmp_path / "one"))
    two = servers[:2]
    async with opened(two, folder) as engine:
        with session("q"):
            await engine.generate([1, 2, 3], GREEDY, trained)
            mine, other = sorted(two, key=lambda server: -len(server.asked()))
            mine.stop()
            await engine.generate([1, 2, 3, 4], GREEDY, trained)
            assert f"ratchet-{adapter_digest(trained)}" in other.adapters
            await engine.generate([1, 2, 3, 4, 5], GREEDY, trained)
            assert len(other.asked()) == 2, "and stays there"
            assert "its trajectories go elsewhere" in caplog.text
            with running(mine.port) as again:
                again.ids = other.ids
                await trajectory(engine, "new", turns=1)
                assert not again.asked(), "it is left alone for a while"
                for replica in engine.replicas:
                    replica.lost_until = 0.0  # the while is over
                await trajectory(engine, "newer", turns=1)
                assert len(again.asked()) == 1, "and tried again later"


async def test_when_all_are_lost_they_are_waited_for_and_then_the_command_ends(
    servers: list[Server], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "FAILOVER_PATIENCE", 0.05)
    two = servers[:2]
    async with opened(two, folder, timeout=1.0) as engine:
        await engine.generate([1, 2, 3], GREEDY)
        for server in two:
            server.stop()
        asked = asyncio.create_task(engine.generate([1, 2, 3], GREEDY))
        await asyncio.sleep(0.4)
        with ExitStack() as stack:
            for server in two:
                stack.enter_context(running(server.port)).ids = server.ids
            assert (await asked).finish_reason == "stop"
        with pytest.raises(ServerLost, match=r"(?s)no server answers.*run the same command again"):
            await engine.generate([1, 2, 3], GREEDY)


async def test_at_the_start_all_servers_are_met(servers: list[Server], folder: str) -> None:
    servers[1].window = 12
    async with opened(servers, folder) as engine:
        await engine.generate([1, 2, 3], GREEDY)
        assert engine.max_context == 12
        assert [replica.engine.max_context for replica in engine.replicas] == [12, 12, 12]
    async with opened(servers, folder, served_name="tinny") as engine:
        with pytest.raises(UserError, match="does not serve 'tinny'"):
            await engine.generate([1, 2, 3], GREEDY)


async def test_one_that_is_not_there_at_the_start_is_left_out(
    servers: list[Server], folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    servers[0].stop()
    async with opened(servers, folder) as engine:
        await asyncio.gather(*(trajectory(engine, f"q{n}", turns=1) for n in range(4)))
        assert counts(servers) == [0, 2, 2]
        assert f"no server answers at {servers[0].url}" in caplog.text
    servers[1].stop()
    servers[2].stop()
    async with opened(servers, folder) as engine:
        with pytest.raises(UserError, match=r"(?s)(no server answers at http.*){3}None of the servers answers; start"):
            await engine.generate([1, 2, 3], GREEDY)


async def test_engines_over_several_addresses_are_opened_from_the_environment(
    servers: list[Server], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_URL_AGENT", ",".join(server.url for server in servers))
    model = ModelConfig(path=folder, engine="vllm", served_name="tiny")
    engine = open_engines({"agent": model}, {"agent"})["agent"]
    assert isinstance(engine, ReplicaEngine) and len(engine.replicas) == 3
    single = open_engine(model.model_copy(update={"url": (servers[0].url,)}))
    assert single.fingerprint == engine.fingerprint, "addresses and their number change no content key"
    await engine.close()
    await single.close()


async def test_an_episode_is_one_session(servers: list[Server], folder: str, tmp_path: Path) -> None:
    index = tiny_index(tmp_path, [{"id": "1", "text": "The harbour of Velm."}])
    for server in servers:
        server.window = 9000
    async with opened(servers, folder) as engine:
        system = load_system(SystemConfig(name="mad"))
        setting = RunContext(policy="base", adapter=None, temperature=0.0, frozen_temperature=0.0, top_p=1.0)
        job = Job(Question(id="q", text="Who?"), sample=0, key="k", seed=1)
        made = await run_episode(job, system, {"agent": engine}, index, setting)
        assert len(made.model_calls) > 1
        assert sorted(counts(servers)) == [0, 0, len(made.model_calls)]
