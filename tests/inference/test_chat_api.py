"""Closed models over OpenAI's chat API: what is sent, what comes back, and what such a service refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from ratchet.agents.core.context import RunContext
from ratchet.agents.core.system import load_system
from ratchet.agents.mermaid.actions import action_schema
from ratchet.core.config import ModelConfig, SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.http.retry import Backoff
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import Completion, SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.engines import open_engine
from ratchet.inference.http.chat_api import ChatApiEngine
from ratchet.inference.http.strict_schema import BOUNDS, response_schema
from ratchet.questions.labels import TRUE_FALSE
from ratchet.retrieval.sources.source import ToolSpec
from tests.helpers.any_system import SYSTEMS
from tests.helpers.closed_service import (
    KEY,
    Refusal,
    Service,
    an_instance,
    any_answer,
    check_request,
    closed_service,
)
from tests.helpers.playing import CLAIM, QUESTION, Shelf, passage, play

pytestmark = pytest.mark.server
FAST = Backoff(tries=4, first=0.01, longest=0.05)
GPT_5_MINI = {"sampling": False, "reasoning_effort": "low", "reasoning_tokens": 2000}
GREEDY = SamplingParams(temperature=0, top_p=0.95, max_tokens=50, seed=3)
EVALUATION = RunContext(temperature=0.0, frozen_temperature=0.0, top_p=0.95, adapter=None, policy="base")
QUERY = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "year": {"type": "integer"}},
    "required": ["query"],
}
ACTIONS = action_schema({n: ToolSpec(n, "finds", QUERY) for n in ("search", "look_up")}, TRUE_FALSE, last=False)


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
    (body,) = service.asked
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
            {"chat_api": GPT_5_MINI},
            {"max_completion_tokens": 2050, "reasoning_effort": "low"},
            {"temperature", "top_p", "max_tokens"},
        ),
        (
            "gpt-4o-mini",
            {"chat_api": {"limit": "max_tokens"}, "send_seed": False},
            {"max_tokens": 50},
            {"max_completion_tokens", "seed"},
        ),
    ],
)
async def test_a_reasoning_model_and_an_older_service_get_what_they_take(
    service: Service, name: str, settings: dict[str, Any], sent: dict[str, Any], left_out: set[str]
) -> None:
    await ask(opened(service, name, **settings))
    (body,) = service.asked
    assert sent.items() <= body.items() and not left_out & body.keys()


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        (
            {"limit": "max_tokens", "sampling": False},
            r"'max_tokens' is not supported.*\n.*limit: max_completion_tokens",
        ),
        ({}, r"'temperature' does not support 0 .*\n.*sampling: false"),
    ],
)
async def test_a_refused_parameter_stops_the_command_with_the_setting_that_leaves_it_out(
    service: Service, settings: dict[str, Any], fix: str
) -> None:
    with pytest.raises(UserError, match=fix):
        await ask(opened(service, "gpt-5-mini", chat_api=settings))


async def test_no_credit_and_a_wrong_key_stop_at_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.refusals = [Refusal("You exceeded your current quota.", 429, code="insufficient_quota", retry_after="60")]
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


async def test_the_tokens_of_prompts_are_estimated(service: Service) -> None:
    engine = opened(service)
    ids = engine.format.encode("The harbour of Velm was built by the engineer Ada Torrin in the year 1204.")
    assert engine.format.count(ids) == 25
    with pytest.raises(EngineError, match="context holds 4"):
        await ask(opened(service, max_context=4))
    assert engine.fingerprint != opened(service, chat_api={"sampling": False}).fingerprint
    await engine.close()


def test_several_addresses_and_settings_of_another_engine_are_refused() -> None:
    with pytest.raises(ValueError, match="one address"):
        ModelConfig(path="m", engine="chat-api", url=("http://a/v1", "http://b/v1"))
    with pytest.raises(ValueError, match="engine is vllm"):
        ModelConfig.model_validate({"path": "m", "engine": "vllm", "chat_api": {"sampling": False}})
    with pytest.raises(UserError, match=r"no url.*api\.openai\.com"):
        open_engine(ModelConfig(path="m", engine="chat-api"))


# Schemas


def without_bounds(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_bounds(one) for key, one in schema.items() if key not in BOUNDS or isinstance(one, dict)}
    return [without_bounds(one) for one in schema] if isinstance(schema, list) else schema


def request(sent: Any, strict: bool) -> dict[str, Any]:
    form = {"name": "action", "schema": sent, "strict": strict}
    return {"model": "gpt-4o-mini", "messages": [], "response_format": {"type": "json_schema", "json_schema": form}}


NESTED = {
    "$defs": {
        "Part": {"type": "object", "properties": {"name": {"const": "a"}, "size": {"type": "number", "minimum": 0}}}
    },
    "type": "array",
    "items": {"anyOf": [{"$ref": "#/$defs/Part"}, {"type": "string", "maxLength": 9}]},
    "maxItems": 4,
}


@pytest.mark.parametrize("schema", [ACTIONS, NESTED, {"enum": ["yes", 1, None]}], ids=["actions", "nested", "choice"])
def test_a_strict_form_is_accepted_and_its_replies_come_back_in_the_form_asked_for(schema: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match='type: "object"'):
        check_request(request(schema, strict=True))
    form = response_schema(schema)
    assert form.strict
    check_request(request(form.sent, strict=True))
    for seed in range(30):
        sent = an_instance(form.sent, form.sent, random.Random(seed))
        jsonschema.validate(sent, form.sent)
        jsonschema.validate(form.plain(sent), without_bounds(schema))


def test_a_thought_stays_ahead_of_the_action_and_bounds_are_said() -> None:
    form = response_schema(ACTIONS)
    assert [*form.sent["properties"]] == ["thought", "then"]
    assert form.sent["properties"]["thought"]["description"] == "at most 600 characters"
    said = {"thought": "t", "then": {"look_up": {"action": "look_up", "arguments": {"query": "q", "year": None}}}}
    assert form.plain(said) == {"thought": "t", "action": "look_up", "arguments": {"query": "q"}}
    assert form.plain({"thought": "t", "verdict": "true"}) == {"thought": "t", "verdict": "true"}


def test_an_object_of_any_keys_is_only_a_hint() -> None:
    schema = {"anyOf": [{"type": "object"}, {"type": "string"}]}
    form = response_schema(schema)
    assert not form.strict and form.sent["type"] == "object"
    check_request(request(form.sent, strict=False))
    assert form.plain({"then": {"any": 1}}) == {"any": 1}


# Systems


CONTINUES = {"flare", "ircot"}
"""Systems that continue an answer which has started, token by token."""


@pytest.mark.parametrize("name", sorted({*SYSTEMS} - CONTINUES))
@pytest.mark.parametrize("model", ["gpt-4o-mini", "gpt-5-mini"])
async def test_every_system_runs_on_a_closed_model_and_is_recorded_as_text(
    service: Service, name: str, model: str
) -> None:
    service.reply = any_answer
    engine = opened(service, model, chat_api=GPT_5_MINI if model == "gpt-5-mini" else {})
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
    assert not any("Invalid schema" in call.error for call in done.model_calls)
    assert service.asked and not done.token_exact
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
