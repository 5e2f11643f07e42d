"""Requests that no client should send: each is a 400 in the form of its API, and nothing of it is lost silently."""

import json
from typing import Any

import httpx
import pytest

from ratchet.agents.external.program import Settings
from ratchet.core.records import Note
from ratchet.inference.tool_calls import resolved
from tests.helpers.gateway import numbered, record, say, system, texts, user

pytestmark = pytest.mark.server
FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "y"}


def nested(levels: int) -> Any:
    value: Any = {"type": "function", "name": "f"}
    for _ in range(levels):
        value = {"type": "namespace", "name": "s", "tools": [value]}
    return value


def responses(*items: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return "responses", {"input": [user("x"), *items], "tools": [FUNCTION], **more}


def messages(*tools: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return "messages", {"messages": [user("x")], "max_tokens": 9, "tools": list(tools), **more}


def in_space(space: str, *names: str) -> dict[str, Any]:
    return {"type": "namespace", "name": space, "tools": [{**FUNCTION, "name": name} for name in names]}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (responses({"type": []}), "an item of type"),
        (responses({"type": {"a": 1}, "role": "user", "content": "x"}), "an item of type"),
        (responses({**CALL, "type": None}), "an item of type"),
        (responses(tools=[nested(400)]), "levels deep"),
        (responses(tools=[{**FUNCTION, "name": "a__b"}, in_space("a", "b")]), "two tools would have the name 'a__b'"),
        (responses(tools=[in_space("a__b", "c"), in_space("a", "b__c")]), "two tools would have the name 'a__b__c'"),
        (responses(tools=[{**FUNCTION, "name": None, "defer_loading": True}]), "there is no name"),
        (responses(tools=[{**in_space("a"), "tools": FUNCTION}]), "expected a list of tools"),
        (responses({"type": "tool_search_output", "call_id": "c", "tools": "all"}), "expected a list of tools"),
        (messages("a tool"), "valid dictionary"),
        (messages({"name": "f", "input_schema": {}}, {"type": "custom", "name": "f"}), "two tools would have the name"),
        (messages(thread={"id": "t"}), "keeps no state"),
    ],
)
async def test_what_cannot_be_read_is_refused_and_noted(asked: tuple[str, dict[str, Any]], says: str) -> None:
    async def program(client: httpx.AsyncClient) -> str:
        path, body = asked
        answer = await client.post(f"/v1/{path}", json={"model": "m", **body})
        assert answer.status_code == 400 and answer.json()["type"] == "error", answer.text
        assert says in answer.json()["error"]["message"]
        await say(client, [user("x")])
        return "Ada"

    trajectory = await record(program, numbered, tools=True)
    read = says not in ("levels deep", "valid dictionary")  # else it is no request of a trajectory yet
    assert [says in event.text for event in trajectory.events if isinstance(event, Note)] == [True] * read


async def test_half_a_character_in_what_names_a_call_is_replaced() -> None:
    """Python's and JavaScript's encoders write it, and no tokenizer reads it."""
    offered = {"messages": {"name": "f", "input_schema": {}}, "responses": FUNCTION}

    async def program(client: httpx.AsyncClient) -> str:
        half = "\ud800"
        call = {"type": "tool_use", "input": {}, "id": half, "name": half}
        blocks: list[dict[str, Any]] = [{"role": "assistant", "content": [call]}]
        blocks.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": half, "content": half}]})
        items = [{**CALL, "name": half, "namespace": half, "call_id": half}, {**RESULT, "call_id": half}]
        bodies: dict[str, dict[str, Any]] = {
            "messages": {"messages": [user("x"), *blocks], "max_tokens": 9},
            "responses": {"input": [user("x"), *items]},
        }
        for path, body in bodies.items():
            content = json.dumps({"model": "m", "tools": [offered[path]], **body})
            answer = await client.post(f"/v1/{path}", content=content, headers={"content-type": "application/json"})
            assert answer.status_code == 200, answer.text
        return "Ada"

    await record(program, numbered, tools=True)


async def test_a_custom_tool_that_is_called_with_more_than_its_text_has_no_other_words_in_the_history() -> None:
    call = {"name": "patch", "arguments": {"input": "a", "why": "b"}}

    async def program(client: httpx.AsyncClient) -> str:
        items: list[Any] = [user("x")]
        for number in range(2):
            body = {"model": "m", "input": items, "tools": [{"type": "custom", "name": "patch"}]}
            [said] = (await client.post("/v1/responses", json=body)).json()["output"]
            if number == 0:
                assert (said["type"], json.loads(said["arguments"])) == ("function_call", call["arguments"])
            items += [said, {**RESULT, "call_id": said.get("call_id")}]
        return "Ada"

    trajectory = await record(program, [f"<tool_call>\n{json.dumps(call)}\n</tool_call>", "done"], tools=True)
    assert [one.foreign_turns for one in trajectory.conversations] == [0]


async def test_deferred_tools_are_described_where_the_service_would_search_them() -> None:
    deferred = {"name": "Fetch", "description": "Fetches.", "input_schema": {}, "defer_loading": True}
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}

    async def program(client: httpx.AsyncClient) -> str:
        for number, tools in enumerate(([search, deferred], [deferred])):
            body = {"model": "m", "messages": [user(f"{number}")], "max_tokens": 9, "tools": tools}
            assert (await client.post("/v1/messages", json=body)).status_code == 200
        return "Ada"

    trajectory = await record(program, numbered, tools=True)
    assert ["Fetches." in text for text in texts(trajectory)] == [True, False]


async def test_a_system_message_of_left_out_lines_leaves_no_trace() -> None:
    line = "x-anthropic-billing-header: cch=1;"

    async def program(client: httpx.AsyncClient) -> str:
        await say(client, [system(line), system("Be brief."), user("x")])
        return "Ada"

    [shown] = texts(await record(program, numbered))
    assert "system\nBe brief.<|im_end|>" in shown
    with pytest.raises(ValueError, match="at least 1 character"):
        Settings(left_out_lines=("",))  # every line begins with it


def test_a_schema_that_refers_to_itself_many_times_is_resolved_once() -> None:
    schema = {"allOf": [{"$ref": "#"}] * 30, "type": "string"}
    assert resolved(schema, schema) == {"type": "string"}
    first = {"$defs": {"a": {"enum": ["x"]}}, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}
    assert resolved(first, first)["enum"] == ["x"]
