"""One odd answer, whatever is odd about it, is the failure of one request: the engine and the pool go on."""

import json
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ratchet.inference.completion import SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.http import connection
from tests.helpers.fake_server import Reply
from tests.helpers.odd_answers import ODD, bomb, wire
from tests.helpers.wire_server import FAST, Server, World, adapter, failure

pytestmark = pytest.mark.server

HUGE = 10**4000


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("engine", ["vllm", "chat-api"])
async def test_an_odd_answer_fails_its_request_alone(engine: str, odd: bytes, server: Server, folder: str) -> None:
    world = World(server, folder, engine=engine)
    await world.ask()
    server.faults = [failure(wire=odd)] * FAST.tries
    with pytest.raises(EngineError) as caught:
        await world.ask()
    server.faults = []
    assert type(caught.value).__name__ in ("EngineError", "StatusError") and len(str(caught.value)) < 500
    assert str(caught.value).isprintable() and str(caught.value).encode()
    assert (await world.ask()).finish_reason == "stop", "later requests are as ever"
    await world.engine.close()


TOO_BUSY = {
    "empty": wire(status=202),
    "page": wire(b"<!DOCTYPE html>\n<title>One moment, please</title>"),
    "error": wire(b'{"error": {"code": 502, "message": "the provider is overloaded"}}'),
}


@pytest.mark.parametrize("busy", TOO_BUSY.values(), ids=TOO_BUSY)
async def test_too_busy_inside_a_success_is_tried_again(busy: bytes, text_world: World) -> None:
    text_world.server.faults = [failure(wire=busy)] * 2
    assert (await text_world.ask()).text == text_world.server.text and not text_world.server.faults


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"choice.token_ids": [5, -1]}, r"the token id -1, and the tokenizer's go from 0 to \d+"),
        ({"choice.token_ids": [5, 100_000]}, "the token id 100000"),
        ({"choice.token_ids": [HUGE]}, "the token id 1000"),
        ({"choice.token_ids": [True]}, "token_ids"),
        ({"choice.token_ids": ["7"]}, "token_ids"),
        ({"choice.token_ids": None}, "returns no token ids"),
        ({"choice.token_ids": [5] * 51}, "51 tokens where 50 were asked for"),
        ({"choice.stop_reason": -7}, "the token id -7"),
        ({"choice.finish_reason": "x" * 10**6}, "for the reason 'xxx"),
        ({"choice.logprobs": {"token_logprobs": [float("nan")] * 8}}, "no number in JSON"),
        ({"choice.logprobs": {"token_logprobs": [float("-inf")] * 8}}, "no number in JSON"),
        ({"choice.logprobs": {"token_logprobs": [HUGE] * 8}}, "number"),
        ({"choice.logprobs": ["no", "object"]}, "logprobs"),
        ({"usage.prompt_tokens": HUGE}, "prompt_tokens"),
        ({"usage.prompt_tokens_details": {"cached_tokens": -HUGE}}, "cached_tokens"),
        ({"choices": {"0": {}}}, "choices"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
async def test_values_that_cannot_be_are_refused(world: World, patch: dict[str, Any], message: str) -> None:
    await world.ask()
    world.server.patch = patch
    with pytest.raises(EngineError, match=message) as caught:
        await world.ask(SamplingParams(temperature=0, max_tokens=50, logprobs=True))
    assert len(str(caught.value)) < 500
    world.server.patch = {}
    assert (await world.ask()).text == "harbour"


async def test_half_a_surrogate_pair_in_a_text_becomes_a_question_mark(text_world: World, tmp_path: Path) -> None:
    text_world.server.text = "half \ud800 a pair, \udfff"
    completion = await text_world.ask()
    assert completion.text == "half ? a pair, ?"
    text_world.dialogue.assistant(completion, True)
    text_world.dialogue.user("a document's \ud83d")
    await text_world.ask()
    assert text_world.server.asked("chat/completions")[1].body["messages"][-1]["content"] == "a document's ?"


async def test_an_odd_answer_about_an_adapter_fails_its_request_alone(world: World, tmp_path: Path) -> None:
    folder = str(adapter(tmp_path / "one"))
    choices = {"choices": [{"logprobs": {"tokens": [" a"], "token_logprobs": [float("nan")]}}]}
    for odd in (wire(b"[]"), wire(b'{"choices": []}'), wire(json.dumps(choices).encode())):
        # By content, not by turn: the second of two concurrent requests may arrive after the first has failed.
        world.server.judge = partial(_odd_to_probes, odd)
        with pytest.raises(EngineError, match=r"response is invalid|not valid JSON"):
            await world.ask(adapter=folder)
    world.server.judge = lambda body: None
    assert (await world.ask(adapter=folder)).text == "harbour"


def _odd_to_probes(odd: bytes, body: Any) -> Reply | None:
    """An odd answer to the fixed prompt that tells an adapter from its base model."""
    return failure(wire=odd) if isinstance(body, dict) and isinstance(body.get("prompt"), str) else None


async def test_no_more_is_read_than_an_answer_can_be(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_RESPONSE_BYTES", 1 << 20)
    await world.ask()
    packed = bomb(256)
    tracemalloc.start()
    try:
        for fault in (failure(wire=packed), failure(flood=1 << 30)):
            world.server.faults = [fault]
            tracemalloc.reset_peak()
            with pytest.raises(EngineError, match="more than 1 MiB is not read"):
                await world.ask()
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert world.server.flooded < 16 << 20, "what the sockets hold comes on top of what was read"
    assert (await world.ask()).text == "harbour"
    await world.engine.close()
