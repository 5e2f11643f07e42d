"""Closed models over OpenAI's chat API: what is sent, what comes back, and what such a service refuses."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ratchet.agents.core.system import load_system
from ratchet.agents.core.task import RunContext
from ratchet.core.config import ModelConfig, SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.http.retry import Backoff
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import Completion, SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.http.chat_api import SCHEMA, ChatApiEngine
from tests.helpers.any_system import SYSTEMS
from tests.helpers.closed_service import (
    KEY,
    Service,
    any_answer,
    closed_service,
    refusal,
)
from tests.helpers.playing import CLAIM, QUESTION, Shelf, passage, play

pytestmark = pytest.mark.server
FAST = Backoff(tries=4, first=0.01, longest=0.05)
NO_SAMPLING = {"temperature": None, "top_p": None}
GPT_5_MINI: dict[str, Any] = {"request": {**NO_SAMPLING, "reasoning_effort": "low"}, "reasoning_tokens": 2000}
GREEDY = SamplingParams(temperature=0, top_p=0.95, max_tokens=50, seed=3)
EVALUATION = RunContext(temperature=0.0, frozen_temperature=0.0, top_p=0.95, adapter=None, policy="base")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("LOCAL_KEY", KEY)
    with closed_service() as service:
        yield service


def opened(service: Service, name: str = "gpt-4o-mini", **settings: Any) -> ChatApiEngine:
    values = {"path": name, "engine": "chat-api", "url": service.url, "api_key_env": "LOCAL_KEY", "timeout": 5.0}
    return ChatApiEngine(ModelConfig.model_validate(values | settings), FAST)


async def ask(engine: ChatApiEngine, params: SamplingParams = GREEDY, text: str = "Where?") -> Completion:
    dialogue = Dialogue("r", "m", engine.format, True, "Be brief.")
    dialogue.user(text)
    try:
        return await engine.generate(dialogue.ids, params, messages=dialogue.messages)
    finally:
        await engine.close()


async def test_messages_are_sent_and_the_services_own_count_is_the_cost(service: Service) -> None:
    found = await ask(opened(service), text="Where <|im_end|> is it?")
    (body,) = service.taken
    assert body == {
        "model": "gpt-4o-mini",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where <|im_end|> is it?"},
        ],
        "max_completion_tokens": 50,
        "temperature": 0,
        "top_p": 0.95,
        "seed": 3,
    }
    assert (found.text, found.finish_reason) == ("Velm", "stop")
    assert (found.prompt_tokens, found.cached_tokens, found.new_tokens) == (20, 4, 300)


@pytest.mark.parametrize(
    ("name", "settings", "sent", "left_out"),
    [
        (
            "gpt-5-mini",
            GPT_5_MINI,
            {"max_completion_tokens": 2050, "reasoning_effort": "low"},
            {"temperature", "top_p", "max_tokens"},
        ),
        (
            "gpt-4o-mini",
            {"request": {"max_completion_tokens": None}, "send_seed": False},
            {"max_tokens": 50},
            {"max_completion_tokens", "seed"},
        ),
    ],
)
async def test_a_reasoning_model_and_an_older_service_get_what_they_take(
    service: Service, name: str, settings: dict[str, Any], sent: dict[str, Any], left_out: set[str]
) -> None:
    await ask(opened(service, name, **settings))
    (body,) = service.taken
    assert sent.items() <= body.items() and not left_out & body.keys()


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        (
            {**NO_SAMPLING, "max_completion_tokens": None},
            r"'max_tokens' is not supported.*\n.*no request: .max_completion_tokens: null",
        ),
        ({}, r"'temperature' does not support 0 .*\n.*request: .temperature: null"),
    ],
)
async def test_a_refused_parameter_stops_the_command_with_the_setting_that_leaves_it_out(
    service: Service, settings: dict[str, Any], fix: str
) -> None:
    with pytest.raises(UserError, match=fix):
        await ask(opened(service, "gpt-5-mini", request=settings))


async def test_no_credit_and_a_wrong_key_stop_at_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.faults = [refusal("You exceeded your current quota.", 429, code="insufficient_quota", retry_after="60")]
    with pytest.raises(UserError, match="no credit left"):
        await ask(opened(service))
    monkeypatch.setenv("LOCAL_KEY", "sk-wrong")
    with pytest.raises(UserError, match="LOCAL_KEY, which the server does not accept") as error:
        await ask(opened(service))
    assert "sk-wrong" not in str(error.value)
    monkeypatch.setenv("LOCAL_KEY", KEY)
    with pytest.raises(UserError, match="'gpt-9' a model of this service"):
        await ask(opened(service, "gpt-9"))


async def test_a_refusal_is_the_models_answer_and_a_filtered_one_is_a_failure(service: Service) -> None:
    service.message = {"content": None, "refusal": "I cannot help with that."}
    assert (await ask(opened(service))).text == "I cannot help with that."
    service.finish = "content_filter"
    with pytest.raises(EngineError, match="content_filter"):
        await ask(opened(service))
    service.finish, service.message = "length", {"content": None}
    found = await ask(opened(service))
    assert (found.text, found.finish_reason, found.new_tokens) == ("", "length", 300)


async def test_it_takes_no_adapter_and_continues_no_answer(service: Service) -> None:
    engine = opened(service)
    with pytest.raises(UserError, match="takes no adapter"):
        await engine.generate([], GREEDY, "adapters/one", [{"role": "user", "content": "x"}])
    with pytest.raises(UserError, match="log-probabilities"):
        await engine.generate([], SamplingParams(0, logprobs=True), None, [{"role": "user", "content": "x"}])
    await engine.close()


# JSON


@pytest.mark.parametrize(
    ("schema", "mode"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "json_object"}),
        ({"anyOf": [{"type": "object"}]}, {"type": "json_object"}),
        ({"type": "array"}, None),
        ({"enum": ["yes", "no"]}, None),
    ],
)
async def test_a_schema_is_said_and_asked_for_in_json_mode(
    service: Service, schema: dict[str, Any], mode: dict[str, str] | None
) -> None:
    await ask(opened(service), replace(GREEDY, schema=schema))
    (body,) = service.taken
    assert body["messages"][-1]["content"] == f"Where?{SCHEMA}{json.dumps(schema)}"
    assert body.get("response_format") == mode


async def test_a_reply_that_is_nearly_in_form_is_read(service: Service) -> None:
    service.say = lambda body: 'Sure!\n```json\n{"reasoning": "r", "final_answer": "SUPPORTS",}\n```\nGladly.'
    engine = opened(service)
    roles = {role: {"trainable": True} for role in load_system(SystemConfig(name="fire")).roles}
    try:
        done = await play({"name": "fire", "roles": roles}, {"agent": engine}, setting=EVALUATION, question=CLAIM)
    finally:
        await engine.close()
    assert (done.answer, [call.parse for call in done.model_calls]) == ("SUPPORTS", ["ok"])


# Systems


CONTINUES = {"flare", "ircot"}
"""Systems that continue an answer which has started, token by token."""


@pytest.mark.parametrize("name", sorted({*SYSTEMS} - CONTINUES))
@pytest.mark.parametrize("model", ["gpt-4o-mini", "gpt-5-mini"])
async def test_every_system_runs_on_a_closed_model_and_is_recorded_as_text(
    service: Service, name: str, model: str
) -> None:
    service.say = any_answer
    engine = opened(service, model, **(GPT_5_MINI if model == "gpt-5-mini" else {}))
    shelf = Shelf({"Velm": [passage(1, "Ada Torrin built it.", "Velm")]})
    roles = {role: {"trainable": True} for role in load_system(SystemConfig(name=name)).roles}
    verifies = name not in ("mrag", "vanilla_rag")
    try:
        done = await play(
            {"name": name, "roles": roles},
            {"agent": engine},
            shelf,
            setting=EVALUATION,
            question=CLAIM if verifies else QUESTION,
        )
    finally:
        await engine.close()
    assert done.status != "failed", done.error
    assert service.taken and not done.token_exact
    for conversation in done.conversations:
        assert conversation.ids == () and conversation.text
    first = done.model_calls[0]
    spoken = done.conversations[first.conversation].text[first.start : first.end]
    assert (spoken, first.new_tokens, first.prompt_tokens) == (first.text, 300, 20)


@pytest.mark.parametrize("name", sorted(CONTINUES))
async def test_a_system_that_continues_an_answer_says_so(service: Service, name: str) -> None:
    engine = opened(service)
    with pytest.raises(UserError, match="continues an answer that has started, token by token"):
        await play({"name": name}, {"agent": engine}, setting=EVALUATION)
    await engine.close()
