"""Requests that no client should send: each is a 400 in the form of its API, and nothing of it is lost silently."""

import json
from collections.abc import Iterator
from copy import deepcopy
from random import Random
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


def chat(**more: Any) -> tuple[str, dict[str, Any]]:
    return "chat/completions", {"messages": [user("x")], **more}


SAME = {"type": "function", "function": {"name": "f"}}
SHOWN: list[dict[str, Any]] = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference"}]}]},
]
IMAGE = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
REFUSED: list[tuple[tuple[str, dict[str, Any]], str, str]] = [
    (chat(tools=[SAME, SAME]), "tools", "tools.1.function.name: two tools have the name 'f'"),
    (chat(tools=[{"type": "function", "function": {"name": "a b"}}]), "tools", "character 2 is ' '"),
    (chat(messages=[user("x"), {"role": "assistant", "function_call": {}, "content": "y"}, user("z")]), "", ""),
    (chat(messages=[{"role": "assistant", "function_call": {"name": "f"}}]), "messages", "calls as tool_calls"),
    (chat(messages=[{"role": "assistant", "audio": {"id": "a"}}, user("x")]), "messages", "send text"),
    (chat(messages=[user("x"), {"role": "assistant", "content": "said"}]), "messages", "the last one must be"),
    (chat(n=2), "n", "Input should be 1"),
    (chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "messages.0.content", "'image_url'"),
    (responses({"type": []}), "input.1", "an item of type"),
    (responses({"type": {"a": 1}, "role": "user", "content": "x"}), "input.1", "an item of type"),
    (responses({**CALL, "type": None}), "input.1", "an item of type"),
    (responses({"type": "computer_call"}), "input.1", "an item of type"),
    (responses({"role": "user", "content": [{"type": "input_image"}]}), "input.1.content", "send text"),
    (responses({"role": "user", "content": 5}), "input.1.content", "send text"),
    (responses({"role": "robot", "content": "x"}), "input.1.role", "Input should be"),
    (responses(RESULT), "messages", "a result of no call before it"),
    (responses(tools=[{"type": "computer"}]), "tools.0", "only functions can be called"),
    (responses(tools=[FUNCTION, FUNCTION]), "tools", "two tools have the name 'f'"),
    (responses(tools=[{**FUNCTION, "name": "a__b"}, in_space("a", "b")]), "tools", "two tools have the name 'a__b'"),
    (responses(tools=[in_space("a__b", "c"), in_space("a", "b__c")]), "tools", "two tools have the name 'a__b__c'"),
    (responses(tools=[{**FUNCTION, "name": None, "defer_loading": True}]), "tools", "there is no name"),
    (responses(tools=[{**in_space("a"), "tools": FUNCTION}]), "tools.0.tools", "expected a list of tools"),
    (responses({"type": "tool_search_output", "tools": "all"}), "input.1.tools", "expected a list of tools"),
    (responses(tools=[{**FUNCTION, "async": True}]), "tools.0.async", "in the next request"),
    (responses(tools=[nested(400)]), "body", "levels deep"),
    (messages("a tool"), "tools.0", "valid dictionary"),
    (messages({"type": "bash_20250124"}), "tools.0", "only functions can be called"),
    (messages({"name": "f", "input_schema": {}}, {"type": "custom", "name": "f"}), "tools", "two tools have the name"),
    (messages(messages=IMAGE), "messages.0.content", "'image'"),
    (messages(messages=[{"role": "user", "content": [{"type": ["text"]}]}]), "messages.0.content", "cannot be read"),
    (messages({"name": {"a": 1}, "input_schema": {}, "defer_loading": True}, messages=SHOWN), "tools", "no name"),
    (messages(thread={"id": "t"}), "thread", "keeps no state"),
]


async def test_what_cannot_be_read_is_refused_by_its_name_and_noted() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        for (path, body), param, says in REFUSED:
            answer = await client.post(f"/v1/{path}", json={"model": "m", **body})
            assert answer.status_code == (400 if says else 200), answer.text
            if says:
                assert (answer.json()["type"], answer.json()["error"]["param"]) == ("error", param), answer.text
                assert says in answer.json()["error"]["message"]
        await say(client, [user("x")])
        return "Ada"

    trajectory = await record(program, numbered, tools=True)
    noted = [event.text for event in trajectory.events if isinstance(event, Note)]
    read = [says for _, _, says in REFUSED if says not in ("", "levels deep", "valid dictionary", "Input should be 1")]
    assert len(noted) == len(read), "a body that is none of the API's is no request of a trajectory yet"
    assert all(says in note for says, note in zip(read, noted, strict=True))


@pytest.mark.slow
async def test_no_request_is_the_gateways_own_failure() -> None:
    """Requests with a part that is lost, doubled, or something else."""
    random = Random(1)
    other: list[Any] = [None, True, -1, 1e99, "", "\ud800", [], {}, [[None]], {"type": []}, {"type": "custom"}]

    def parts(value: Any) -> Iterator[tuple[Any, Any]]:
        for key in [*value] if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            yield value, key
            yield from parts(value[key])

    async def program(client: httpx.AsyncClient) -> str:
        for _ in range(400):
            path, body = deepcopy(random.choice([asked for asked, _, _ in REFUSED if len(str(asked)) < 5000]))
            for _ in range(random.choice([1, 1, 3])):
                holder, key = random.choice([*parts({"body": body})])
                if random.random() < 0.7:
                    holder[key] = deepcopy(random.choice([*other, body, holder]))
                elif isinstance(holder, dict):
                    del holder[key]
                else:
                    holder.append(holder[key])
            content, headers = json.dumps({"model": "m", **body}), {"content-type": "application/json"}
            answer = await client.post(f"/v1/{path}", content=content, headers=headers)
            assert answer.status_code in (200, 400), content
        await say(client, [user("x")])
        return "Ada"

    assert (await record(program, numbered, tools=True)).status == "finished"


async def test_a_refusal_in_the_history_is_what_was_said() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        await say(client, [user("x"), {"role": "assistant", "content": None, "refusal": "I will not."}, user("y")])
        return "Ada"

    assert "I will not." in texts(await record(program, numbered))[0]


async def test_a_tool_that_two_searches_found_is_one() -> None:
    found = [{"type": "tool_search_call", "call_id": id, "arguments": {}} for id in "ab"]
    results = [{"type": "tool_search_output", "call_id": id, "tools": [in_space("s", "f")]} for id in "ab"]
    offered = {"type": "tool_search", "execution": "client"}

    async def program(client: httpx.AsyncClient) -> str:
        path, body = responses(found[0], results[0], found[1], results[1], tools=[offered])
        answer = await client.post(f"/v1/{path}", json={"model": "m", **body})
        assert answer.status_code == 200, answer.text
        return "Ada"

    await record(program, numbered, tools=True)


async def test_half_a_character_in_what_names_a_call_is_replaced() -> None:
    """Python's and JavaScript's encoders write it, and no tokenizer reads it."""
    offered = {"messages": {"name": "f", "input_schema": {}}, "responses": FUNCTION}
    half = "\ud800"

    async def program(client: httpx.AsyncClient) -> None:
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
        for path, body in ("step", {"text": half}), ("finish", {"answer": half}):
            content = json.dumps(body)
            answer = await client.post(f"/{path}", content=content, headers={"content-type": "application/json"})
            assert answer.status_code == 200, answer.text
        return None

    assert (await record(program, numbered, tools=True)).answer == "?"


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
