"""Several servers of one model: the question chooses, whoever asks about it; and how many requests are in flight."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ratchet.agents.core.system import load_system
from ratchet.agents.core.task import Job, RunContext
from ratchet.core.config import ModelConfig, SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question
from ratchet.inference.engine import asking_about, current_question
from ratchet.inference.engines import (
    addressed,
    concurrency_variable,
    max_requests,
    open_engine,
    open_engines,
    url_variable,
)
from ratchet.inference.http.vllm import ReplicaEngine
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


def counts(servers: list[Server]) -> list[int]:
    return [len(server.asked()) for server in servers]


async def test_the_question_chooses_the_server_of_all_its_requests(
    servers: list[Server], folder: str, tmp_path: Path
) -> None:
    trained = str(adapter(tmp_path / "one"))
    async with opened(servers, folder) as engine:
        for question in map(str, range(20)):
            before = counts(servers)
            with asking_about(question):
                await asyncio.gather(*(engine.generate([1, 2, n], GREEDY, trained) for n in range(3)))
            assert sorted(a - b for a, b in zip(counts(servers), before, strict=True)) == [0, 0, 3]
        assert all(counts(servers)) and current_question() == ""
        await engine.generate([1, 2, 3], GREEDY)  # of no question


async def test_an_episode_is_about_its_question(servers: list[Server], folder: str, tmp_path: Path) -> None:
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


async def test_at_the_start_all_servers_are_met(servers: list[Server], folder: str) -> None:
    servers[1].window = 12
    async with opened(servers, folder) as engine:
        await engine.generate([1, 2, 3], GREEDY)
        assert engine.max_context == 12
        assert [server.max_context for server in engine.servers] == [12, 12, 12]
    servers[1].stop()
    async with opened(servers, folder) as engine:
        with pytest.raises(UserError, match=f"no server answers at {servers[1].url}"):
            await engine.generate([1, 2, 3], GREEDY)


async def test_engines_over_several_addresses_are_opened_from_the_environment(
    servers: list[Server], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_URL_AGENT", ",".join(server.url for server in servers))
    model = ModelConfig(path=folder, engine="vllm", served_name="tiny")
    engine = open_engines({"agent": model}, {"agent"})["agent"]
    assert isinstance(engine, ReplicaEngine) and len(engine.servers) == 3
    single = open_engine(model.model_copy(update={"url": (servers[0].url,)}))
    assert single.fingerprint == engine.fingerprint, "addresses and their number change no content key"
    await engine.close()
    await single.close()


@pytest.fixture
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ratchet models serve` leaves it for two replicas of the model `the agent`."""
    monkeypatch.setenv(url_variable("the agent"), "http://127.0.0.1:1/v1,http://127.0.0.1:2/v1")
    monkeypatch.setenv(concurrency_variable("the agent"), "40")


@pytest.mark.usefixtures("_served")
def test_a_server_of_ours_says_what_it_holds_and_the_config_wins() -> None:
    assert concurrency_variable("the agent") == "RATCHET_CONCURRENCY_THE_AGENT"
    model = ModelConfig(path="m", engine="vllm")
    assert addressed("the agent", model).max_in_flight == 40 and max_requests("the agent", model) == 80
    explicit = ModelConfig(path="m", engine="vllm", concurrency=300)
    assert addressed("the agent", explicit).max_in_flight == 300 and max_requests("the agent", explicit) == 600
    elsewhere = ModelConfig(path="m", engine="vllm", url="http://far:1/v1")
    assert max_requests("the agent", elsewhere) == 64, "nothing is known of that server"


def test_a_model_of_this_process_takes_a_batch() -> None:
    assert max_requests("agent", ModelConfig(path="m", batch=24)) == 24
