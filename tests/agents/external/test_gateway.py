"""The gateway as a program sees it: what it records is token for token what the model saw and said."""

import asyncio
import json
import re
import time
from typing import Any, cast

import httpx
import pytest

from ratchet.agents.external.app import open_gateway
from ratchet.agents.external.program import Settings
from ratchet.agents.external.recording import Recording
from ratchet.core.errors import UserError
from ratchet.core.http.openai import ApiError
from ratchet.core.records import Note
from ratchet.inference.engine import EngineError
from ratchet.inference.schemas import SchemaRefused, SchemaRejected
from tests.helpers.gateway import NAME, free_port, learnt, numbered, record, say, system, texts, user
from tests.helpers.playing import QUESTION
from tests.inference.test_tool_calls import OFFERED

pytestmark = pytest.mark.server


async def test_two_agents_that_take_turns_have_a_conversation_each() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        planner, reader = [system("Plan."), user("one")], [system("Read."), user("one")]
        for step in ("two", "three"):
            for dialogue in (planner, reader):
                # As a program sends it back: blanks stripped, content in parts, keys that nobody needs.
                said = await say(client, dialogue)
                parts = [{"type": "text", "text": said["content"] + " \n"}]
                dialogue += [{"role": "assistant", "content": parts, "name": "x"}, user(step)]  # type: ignore[dict-item]
        return "Ada"

    trajectory = await record(program, numbered)
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada")
    assert [text.count("<|im_start|>assistant") for text in texts(trajectory)] == [2, 2]
    assert ["Plan." in text for text in texts(trajectory)] == [True, False]
    assert [row.count("<|im_end|>") for row in learnt(trajectory)] == [2, 2]
    assert not any(conversation.foreign_turns for conversation in trajectory.conversations)


async def test_a_history_that_was_rewritten_begins_a_new_conversation_and_is_not_trained_on() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        said = await say(client, [user("one")])
        short = {"role": "assistant", "content": "(shortened)"}
        again = await say(client, [user("one"), short, user("two")])
        await say(client, [user("one"), short, user("two"), again, user("three")])
        await say(client, [user("one"), said, user("four")])
        return "Ada"

    trajectory = await record(program, numbered)
    assert [conversation.foreign_turns for conversation in trajectory.conversations] == [0, 1]
    assert "(shortened)" in texts(trajectory)[1]
    first, second = learnt(trajectory)
    assert "to one" in first and "to four" in first and "to two" in second and "to three" in second
    assert "(shortened)" not in second


async def test_a_turn_with_two_continuations_is_taught_once() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        said = await say(client, [user("one")])
        branches = [say(client, [user("one"), said, user(f"branch {n}")]) for n in (1, 2)]
        await asyncio.gather(*branches, say(client, [user("one")]))
        return "Ada"

    trajectory = await record(program, numbered)
    assert sorted(row.count("to one") for row in learnt(trajectory)) == [0, 1, 1]
    one, two = [text for text in texts(trajectory) if "branch" in text]
    assert one.partition("branch")[0] == two.partition("branch")[0], "both continue the same ids"


async def test_a_thought_is_told_apart_from_the_answer() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        said = await say(client, [user("Where?")])
        assert (said["content"], said["reasoning_content"]) == ("Oslo.", "far")
        # A program may send the thought back; it stays the same conversation.
        assert "reasoning_content" not in await say(client, [user("Where?"), said, user("Who?")])
        return "Ada"

    trajectory = await record(program, ["<think>far</think>Oslo.", "Ada."])
    first, second = trajectory.model_calls
    [talk] = trajectory.conversations
    spans = [span for span in talk.spans if span.sampled]
    assert [span.thought for span in spans] == [True, False, False]
    assert (first.thought_tokens, second.thought_tokens) == (spans[0].end - spans[0].start, 0)
    assert learnt(trajectory) == ["<think>far</think>Oslo.<|im_end|>Ada.<|im_end|>"]


async def test_a_schema_that_cannot_be_compiled_is_the_programs_mistake() -> None:
    deep: dict[str, Any] = {}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    wrong: dict[str, Any] = {
        "Unclosed|regex": {"type": "object", "properties": {"a": {"type": "string", "pattern": "([a-z"}}},
        "objekt": {"type": "objekt"},
        "leads to nothing": {"properties": {"a": {"$ref": "#/$defs/x"}}},
        "not to a part": {"properties": {"a": {"$ref": "http://127.0.0.1:1/a.json"}}},
        "back to itself": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        "minimum": {"type": "integer", "minimum": 5, "maximum": 1},
        "-1": {"type": "string", "minLength": -1},
        "levels deep": deep,
        "characters": {"enum": [f"value {n}" for n in range(9999)]},
        "an object": ["no", "schema"],
    }

    async def program(client: httpx.AsyncClient) -> str:
        for words, schema in wrong.items():
            form = {"type": "json_schema", "json_schema": {"schema": schema}}
            body = {"model": "m", "messages": [user("x")], "response_format": form}
            refused = await client.post("/v1/chat/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_format"), words
            assert re.search(words, refused.json()["error"]["message"])
        nested = {
            "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}},
            "$ref": "#/$defs/n",
        }
        await say(client, [user("x")], response_format={"type": "json_schema", "json_schema": {"schema": nested}})
        for text in ("y", "z"):  # which the engines of this run refuse
            body = {"model": "m", "messages": [user(text)], "response_format": {"type": "json_object"}}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 400
        return "Ada"

    refusals = SchemaRefused("the service has another compiler"), SchemaRejected("and so has the server")
    trajectory = await record(program, ['{"next": {}}', *refusals])
    assert trajectory.status == "finished" and [call.parse for call in trajectory.model_calls] == ["ok"]


async def test_a_stream_a_stop_text_and_a_schema() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        body = {"model": "agent", "messages": [user("one")], "stream": True, "stream_options": {"include_usage": True}}
        lines = (await client.post("/v1/chat/completions", json=body)).text.splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert events[0]["choices"][0]["delta"]["content"] == "Ada." and lines[-2] == "data: [DONE]"
        assert events[-2]["choices"][0]["finish_reason"] == "stop" and events[-1]["usage"]["completion_tokens"] > 1
        assert events[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] > 1
        assert (await say(client, [user("two")], stop=["Observation:"]))["content"] == "Thought: look. "
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"required": ["a"]}}}
        await say(client, [user("three")], response_format=form)
        return "Ada"

    said = ["<think>Bo.</think>Ada.", "Thought: look. Observation: made up", '{"b": 1}']
    trajectory = await record(program, said)
    assert [call.parse for call in trajectory.model_calls] == ["free", "free", "malformed"]
    assert "made up" not in "".join(texts(trajectory))
    thought, stopped = learnt(trajectory)
    assert thought.startswith(said[0]) and stopped.startswith("Thought: look. Observation:")


async def test_a_request_of_megabytes_is_refused_before_its_tokens_are_counted() -> None:
    """Whatever is long in it: other trajectories would have to wait meanwhile."""
    calls = [{"id": f"c{n}", "function": {"name": "f"}} for n in range(35_000)]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": ""} for n in reversed(range(35_000))]
    long: list[dict[str, Any]] = [
        {"messages": [user("x " * 2_000_000)]},
        {"messages": [user("")] * 40_000},
        {"messages": [user("x"), {"role": "assistant", "tool_calls": calls}, *results]},
        {"messages": [user("x")], "tools": [{**OFFERED[0], "x": "y" * 4_000_000}]},
        {"messages": [user("x")], "tools": OFFERED * 16_000},
    ]

    async def program(client: httpx.AsyncClient) -> str:
        first = await say(client, [user("x")])
        for body in long:
            body["messages"] = [user("x"), {"role": "assistant", **first}, *body["messages"]]
            before = time.process_time()
            refused = await client.post("/v1/chat/completions", json={"model": "m", **body})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
            assert time.process_time() - before < 60
        query = await client.post("/search", json={"query": "x" * 200_000})
        assert query.status_code == 400
        return "Ada"

    trajectory = await record(program, numbered, tools=True)
    assert trajectory.status == "finished" and len(trajectory.conversations) == 1


@pytest.mark.parametrize("id", ["où est-il ?", "a/b%20c#?", "日本", "a\nb: c", "../..", "x" * 3000])
async def test_any_question_has_a_name_that_addresses_and_headers_hold(id: str) -> None:
    async def program(client: httpx.AsyncClient) -> str:
        address = str(client.base_url).partition("/t/")[0]
        [task] = (await client.get(f"{address}/trajectories")).json()["trajectories"]
        assert task["question_id"] == id
        body = {"model": "m", "messages": [user("one")]}
        for url, headers in (
            (task["base_url"], {}),
            (f"{address}/v1", {"Authorization": f"Bearer {task['api_key']}"}),
            (f"{address}/v1", {"X-Ratchet-Trajectory": task["api_key"]}),
        ):
            answer = await client.post(f"{url}/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
        finish = task["base_url"].removesuffix("/v1") + "/finish"
        assert (await client.post(finish, json={"answer": "Ada"})).status_code == 200
        return ""

    trajectory = await record(program, numbered, question=QUESTION.model_copy(update={"id": id}))
    assert (trajectory.answer, len(trajectory.conversations)) == ("Ada", 3)


async def test_what_the_model_cannot_do_is_refused_in_openais_form_and_noted() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        body = {"model": "m", "messages": [user("x")], "tools": OFFERED}
        refused = await client.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
        long = await client.post("/v1/chat/completions", json={"model": "m", "messages": [user("x " * 900)]})
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        return "Ada"

    trajectory = await record(program, numbered, max_context=300)
    assert trajectory.status == "out_of_budget" and not trajectory.model_calls
    assert len([event for event in trajectory.events if isinstance(event, Note)]) == 1


async def test_searches_are_recorded_and_give_the_documents_of_the_answer() -> None:
    async def program(client: httpx.AsyncClient) -> None:
        found = (await client.post("/search", json={"query": QUESTION.text, "k": 2})).json()["passages"]
        assert [one["text"] for one in found] == ["Ada built it.", "fact 2"]
        await say(client, [user("Who?")])
        await client.post("/finish", json={"answer": "Ada", "documents": ["c2", "none"]})

    trajectory = await record(program, numbered)
    assert [one.id for one in trajectory.passages] == ["c2"] and trajectory.searches[0].query == QUESTION.text


async def test_a_trajectory_is_named_by_path_header_or_key_and_no_other_name_is_served() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        address = str(client.base_url).partition("/t/")[0]
        body = {"model": "m", "messages": [user("one")]}
        for headers, status in (
            ({"Authorization": f"Bearer {NAME}"}, 200),
            ({"X-Api-Key": NAME}, 200),
            ({"Authorization": f"Basic {NAME}"}, 401),
            ({"X-Ratchet-Trajectory": NAME, "Authorization": "Bearer else"}, 200),
            ({"Authorization": "Bearer else"}, 401),
            ({"X-Ratchet-Trajectory": "ended", "Authorization": f"Bearer {NAME}"}, 401),
            ({}, 401),
        ):
            answer = await client.post(f"{address}/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == status, answer.text
        [task] = (await client.get(f"{address}/trajectories")).json()["trajectories"]
        assert (task["question"], task["api_key"], task["sample"]) == (QUESTION.text, NAME, 3) and "Ada" not in str(
            task
        )
        elsewhere = await client.post("/v1/chat/completions", json=body, headers={"Origin": "http://evil.example"})
        assert elsewhere.status_code == 403
        return "Ada"

    assert len((await record(program, numbered)).conversations) == 3


async def test_an_engine_that_fails_ends_the_trajectory_as_failed() -> None:
    async def program(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/chat/completions", json={"model": "m", "messages": [user("x")]})
        assert (answer.status_code, answer.headers["x-should-retry"]) == (502, "false")

    trajectory = await record(program, [EngineError("the server is gone")])
    assert (trajectory.status, trajectory.error) == ("failed", "the server is gone")
    with pytest.raises(UserError, match="no such"):
        await record(program, [UserError("no such adapter")])


async def test_a_program_that_stops_asking_ends_by_the_time_out() -> None:
    async def program(client: httpx.AsyncClient) -> None:
        await say(client, [user("x")])

    trajectory = await record(program, numbered, timeout=0.2)
    assert trajectory.status == "failed" and "0.2 s" in trajectory.error and len(trajectory.model_calls) == 1


async def test_roles_are_played_by_the_model_that_a_request_names() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        for model in ("judge", "gpt-4o", "writer"):
            await client.post("/v1/chat/completions", json={"model": model, "messages": [user(model)]})
        return "Ada"

    trajectory = await record(program, numbered, roles=["writer", "judge"])
    assert [conversation.role for conversation in trajectory.conversations] == ["judge", "writer", "writer"]


async def test_who_comes_while_the_gateway_closes_gets_one_of_the_same_port() -> None:
    port = free_port()
    first = open_gateway(port)
    await first.__aenter__()
    closing = asyncio.ensure_future(first.__aexit__(None, None, None))
    await asyncio.sleep(0)
    async with open_gateway(port) as gateway, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{gateway.address}/trajectories")).status_code == 200
    await closing


async def test_a_request_that_found_a_trajectory_before_it_ended_asks_no_model() -> None:
    recording = Recording(QUESTION, cast(Any, None), Settings())
    await recording.close()
    with pytest.raises(ApiError, match="has ended"):
        await recording.search("Ada", 1)
