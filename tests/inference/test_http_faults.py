"""What the HTTP engine does when a server fails: retries, limits, and keys that stay secret."""

import asyncio
import json
import re
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
from ratchet.core.http.retry import read_retry_after
from ratchet.inference.completion import SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.engines import open_engines
from ratchet.inference.http.connection import ServerLost
from tests.helpers.fake_server import Reply
from tests.helpers.odd_answers import wire
from tests.helpers.waiting import wait_for
from tests.helpers.wire_server import GREEDY, SCHEMA, Server, World, adapter, failure, running

pytestmark = pytest.mark.server

KEY = "sk-very-secret"

# Faults


@pytest.mark.parametrize("fault", [*map(failure, (408, 409, 425, 429, 500, 502, 503, 504)), failure(drop=True)])
async def test_what_is_for_a_moment_is_tried_again(world: World, fault: Reply) -> None:
    world.server.faults = [fault, fault]
    assert (await world.ask()).text == "harbour"
    first, *again = world.server.asked()
    assert [r.body for r in again] == [first.body] * 2


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_wrong_request_is_not_repeated(world: World, status: int) -> None:
    world.server.faults = [failure(status, "no\n such schema " + "x" * 1000)]
    with pytest.raises(EngineError, match=rf"{status}: no such schema x+ \[cut\]$") as error:
        await world.ask()
    assert len(str(error.value)) < 400
    assert len(world.server.asked()) == 1


async def test_retry_after_is_honoured(world: World) -> None:
    await world.ask()
    world.server.faults = [failure(429, headers={"Retry-After": "0.4"})]
    began = time.monotonic()
    await world.ask()
    assert time.monotonic() - began >= 0.4


def test_retry_after_in_both_forms_and_in_none() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 25 < (read_retry_after({"retry-after": soon}) or 0) <= 30
    assert read_retry_after({"retry-after": "1.5"}) == 1.5
    assert read_retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert [read_retry_after({"retry-after": value}) for value in ("", "soon", "nan")] == [None] * 3
    assert read_retry_after({}) is None


async def test_an_answer_beyond_the_timeout(server: Server, folder: str) -> None:
    world = World(server, folder, timeout=0.3)
    server.faults = [failure(delay=1.0)]
    with pytest.raises(EngineError, match=r"no answer within 0.3 s \(models\.\*\.timeout\)"):
        await world.ask()


async def test_requests_in_flight_are_limited(server: Server, folder: str) -> None:
    world = World(server, folder, concurrency=2)
    server.pause = 0.2
    await asyncio.gather(*(world.ask() for _ in range(8)))
    assert len(server.asked()) == 8
    assert server.most_at_once == 2


async def test_a_proxy_for_the_world_is_not_asked_for_our_own_servers(
    server: Server, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert (await World(server, folder).ask()).text == "harbour"


# The key


async def test_the_key_is_sent_and_never_shown(server: Server, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    server.key = KEY
    world = World(server, folder, api_key_env="MY_KEY")
    assert (await world.ask()).text == "harbour"
    assert {r.headers["authorization"] for r in server.requests} == {f"Bearer {KEY}"}
    server.faults = [failure(400, f"bad request with {KEY}")]
    with pytest.raises(EngineError) as error:
        await world.ask()
    assert KEY not in str(error.value) + repr(error.value)
    server.key = "another"
    with pytest.raises(UserError, match=r"401.*MY_KEY, which the server does not accept") as refused:
        await world.ask()
    assert KEY not in str(refused.value)
    assert len(server.asked()) == 3, "a refused key is not tried again"


async def test_a_missing_key_is_named(server: Server, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    server.key = KEY
    with pytest.raises(UserError, match="MY_KEY, which is not set"):
        await World(server, folder, api_key_env="MY_KEY").ask()
    assert "authorization" not in server.requests[0].headers


# A server that is away for a while


async def test_a_restart_is_waited_out_and_said_once(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = str(adapter(tmp_path / "one"))
    await world.ask(adapter=folder)
    world.server.faults = [failure(delay=0.3)] * 3
    asked = [asyncio.create_task(world.ask(adapter=folder)) for _ in range(3)]
    await asyncio.sleep(0.1)
    world.server.stop()  # in the middle of three answers
    await asyncio.sleep(0.5)  # more tries than a fault of another kind would get
    with running(world.server.port) as again:
        again.ids = world.server.ids
        assert [answer.text for answer in await asyncio.gather(*asked)] == ["harbour"] * 3
        assert len(again.asked("load_lora_adapter")) == 1, "it has forgotten the adapter"
    said = [record.message for record in caplog.records if record.name == "ratchet.inference.http.connection"]
    assert [re.sub(r":\d+", "", line).split(":")[0] for line in said] == ["waiting for http", "http"]
    assert "up to 5s: " in said[0] and "is back after" in said[1]


async def test_a_server_that_stays_away_ends_the_command_when_the_time_is_over(server: Server, folder: str) -> None:
    world = World(server, folder, timeout=0.6)
    await world.ask()
    server.stop()
    began = time.monotonic()
    with pytest.raises(ServerLost, match=r"(?s)no server answers.*timeout: 0\.6 s.*run the same command again"):
        await world.ask()
    assert time.monotonic() - began > 0.3


async def test_a_request_that_breaks_its_connection_while_others_are_answered_fails_alone(
    server: Server, folder: str
) -> None:
    world = World(server, folder, timeout=1.0)
    await world.ask()

    def drop_long_ones(body: dict[str, Any]) -> Reply | None:
        return failure(drop=True) if body["max_tokens"] == 7 else None

    server.judge = drop_long_ones
    failing = asyncio.create_task(world.ask(SamplingParams(temperature=0, max_tokens=7)))
    await asyncio.to_thread(wait_for, lambda: len(world.server.asked()) > 1)
    assert (await world.ask()).text == "harbour"
    with pytest.raises(EngineError, match="it answers other requests"):
        await failing


async def test_a_server_that_somebody_has_seen_is_waited_for_from_the_start(
    server: Server, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_URL_AGENT", server.url)
    server.stop()
    model = ModelConfig(path=folder, engine="vllm", served_name="tiny", timeout=300.0)
    engine = open_engines({"agent": model}, {"agent"})["agent"]
    asked = asyncio.create_task(engine.generate([1, 2, 3], GREEDY))
    await asyncio.sleep(0.2)
    with running(server.port) as up:
        up.ids = [5, engine.format.end_of_turn]
        assert (await asked).ids == (5, engine.format.end_of_turn)
    await engine.close()


# What a refusal means


def error(message: str, **more: Any) -> str:
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400, **more}})


FULL = [
    (400, error("This model's maximum context length is 10 tokens. However, your prompt contains at least 11 input")),
    (400, error("The decoder prompt (length 12) is longer than the maximum model length of 10. Make sure")),
    (400, error("Too much.", param="input_tokens")),
    (
        400,
        error(
            "Your input exceeds the limit of this model.", type="invalid_request_error", code="context_length_exceeded"
        ),
    ),
    (400, error("the request exceeds the available context size", type="exceed_context_size_error", n_ctx=256)),
    (
        400,
        json.dumps(
            {"object": "error", "message": "The input (61 tokens) is longer than the model's context length (40"}
        ),
    ),
    (
        422,
        json.dumps({"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 1"}),
    ),
    (400, error("Requested tokens (2285) exceed context window of 2048")),
    # of a prompt that fills a smaller window exactly
    (400, error("max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)")),
]
REFUSED_SCHEMAS = [
    (
        400,
        error(
            "Invalid schema for response_format 'action': in context=('properties', 'a'), 'maxLength' exceeds the size"
        ),
    ),
    (400, error("Grammar error: the context-free grammar exceeds the maximum size")),
    (400, error("Failed to transform json schema into a grammar: maximum length in this context")),
    (400, error("Not permitted here.", type="invalid_request_error", param="response_format", code=None)),
    (422, json.dumps({"detail": "structured_outputs: the value exceeds the maximum size of its context"})),
]
OTHERS = [
    (400, error("context: this parameter exceeds its maximum length")),
    (413, "<html>Request Entity Too Large: maximum size exceeded in this context</html>"),
]


@pytest.mark.parametrize(("status", "body"), FULL)
async def test_a_full_context_is_told_by_codes_and_by_clear_words(world: World, status: int, body: str) -> None:
    world.server.faults = [failure(wire=wire(body.encode(), status))]
    assert (await world.ask(SamplingParams(temperature=0, schema=SCHEMA))).finish_reason == "context"


@pytest.mark.parametrize(("status", "body"), REFUSED_SCHEMAS)
async def test_a_refused_schema_is_no_full_context(world: World, status: int, body: str) -> None:
    world.server.faults = [failure(wire=wire(body.encode(), status))]
    with pytest.raises(
        EngineError, match=rf"(?s)answered {status}: .*\nThe server refuses the JSON schema .*\"object\""
    ):
        await world.ask(SamplingParams(temperature=0, schema=SCHEMA))
    assert (await world.ask()).text == "harbour"


@pytest.mark.parametrize(("status", "body"), OTHERS)
async def test_any_other_refusal_fails_its_request_in_the_servers_words(world: World, status: int, body: str) -> None:
    world.server.faults = [failure(wire=wire(body.encode(), status))]
    with pytest.raises(EngineError, match=rf"answered {status}: .*maximum") as caught:
        await world.ask(SamplingParams(temperature=0, schema=SCHEMA))
    assert "schema" not in str(caught.value)
