"""Tools that programs offer to the model through the gateway: how they are called, chosen and answered."""

import json
import re
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from ratchet.inference.completion import Message, SamplingParams
from ratchet.training.rows import build_rows, check_rows
from tests.helpers.gateway import learnt, record, say, texts, user
from tests.helpers.templates import templated_format
from tests.inference.test_tool_calls import CALL, OFFERED, SAID

pytestmark = pytest.mark.server


async def test_tools_are_offered_called_and_answered_in_the_templates_form() -> None:
    offered = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
    called = '<tool_call>\n{"name": "search", "arguments": {"query":  "Velm"}}\n</tool_call>'

    async def program(client: httpx.AsyncClient) -> str:
        dialogue: list[Any] = [user("Who?")]
        said = await say(client, dialogue, tools=offered)
        [call] = said["tool_calls"]
        assert said["content"] == "So:" and json.loads(call["function"]["arguments"]) == {"query": "Velm"}
        call["function"]["arguments"] = '{ "query":"Velm" }'  # as a framework writes it again
        dialogue += [said, {"role": "tool", "tool_call_id": call["id"], "content": "Ada"}]
        dialogue += [await say(client, dialogue, tools=offered), user("Sure?")]
        assert dialogue[-2]["content"] == "It was Ada."
        assert (
            "tool_calls" not in (bad := await say(client, dialogue, tools=offered)) and "<tool_call>" in bad["content"]
        )
        return "Ada"

    trajectory = await record(program, [f"So: {called}", "It was Ada.", "<tool_call>{oops"], tools=True)
    assert len(trajectory.conversations) == 1 and "<tool_response>Ada</tool_response>" in texts(trajectory)[0]
    assert [call.parse for call in trajectory.model_calls] == ["ok", "ok", "malformed"]
    assert learnt(trajectory) == [f"So: {called}<|im_end|>It was Ada.<|im_end|>"]


@pytest.mark.parametrize("name", SAID)
async def test_a_call_of_each_family_is_answered_and_taught_as_it_was_sampled(name: str) -> None:
    chat = templated_format(name)
    before = "far\n</think>\n\n" if chat.reply_opening else "<|channel|>final<|message|>" if name == "gptoss" else ""

    async def program(client: httpx.AsyncClient) -> str:
        dialogue: list[Any] = [user("Who?")]
        dialogue.append(await say(client, dialogue, tools=OFFERED))
        [call] = dialogue[-1]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == CALL.value
        dialogue.append({"role": "tool", "tool_call_id": call["id"], "content": "Ada"})
        return str((await say(client, dialogue, tools=OFFERED))["content"])

    trajectory = await record(program, [SAID[name], f"{before}It was Ada."], chat=chat)
    assert trajectory.answer == "It was Ada." and [call.parse for call in trajectory.model_calls] == ["ok", "ok"]
    rows, _ = build_rows(trajectory, 10**9)
    assert check_rows(rows, {trajectory.key: trajectory}) == 2


async def test_a_tools_choice_forces_a_call_of_the_tools_that_it_allows() -> None:
    offered = [{"type": "function", "function": {"name": name}} for name in ("search", "finish")]
    named = {"type": "function", "function": {"name": "finish"}}

    def reply(_: str, params: SamplingParams, messages: Sequence[Message]) -> str:
        names = re.findall(r'name\\": \\"(\w+)', params.schema) if isinstance(params.schema, str) else []
        return f'<tool_call>{{"name": "{names[-1]}", "arguments": {{}}}}</tool_call>' if names else "no call"

    async def program(client: httpx.AsyncClient) -> str:
        for choice, called in (("auto", None), ("none", None), ("required", "finish"), (named, "finish")):
            said: Any = await say(client, [user("x")], tools=offered, tool_choice=choice)
            assert [call["function"]["name"] for call in said.get("tool_calls", [])] == ([called] if called else [])
        for wrong in ("any", {"type": "function", "function": {"name": "else"}}, {"type": "allowed_tools"}):
            body = {"model": "m", "messages": [user("x")], "tools": offered, "tool_choice": wrong}
            refused = await client.post("/v1/chat/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
        body = {"model": "m", "messages": [user("x")], "tool_choice": "required"}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 400
        return "Ada"

    trajectory = await record(program, reply, tools=True)
    assert [call.parse for call in trajectory.model_calls] == ["ok", "free", "ok", "ok"]


async def test_results_of_parallel_calls_are_told_apart_by_their_ids_alone() -> None:
    offered = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
    called = "".join(
        f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{query}"}}}}\n</tool_call>' for query in "ab"
    )

    async def program(client: httpx.AsyncClient) -> str:
        asked = [user("Who?")]
        said: Any = await say(client, asked, tools=offered)
        one, two = (
            {"role": "tool", "tool_call_id": call["id"], "content": f"of {call['function']['arguments']}"}
            for call in said["tool_calls"]
        )
        for sent in (
            [one],
            [one, one],
            [two, one, {**one, "tool_call_id": "other"}],
            [one, {"role": "tool", "content": "x"}],
            [user("Go on."), one, two],
        ):
            refused = await client.post(
                "/v1/chat/completions", json={"model": "m", "messages": [*asked, said, *sent], "tools": offered}
            )
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
        alike: Any = {**said, "tool_calls": [said["tool_calls"][0]] * 2}
        for orphan in ([*asked, one], [*asked, alike, one]):
            refused = await client.post("/v1/chat/completions", json={"model": "m", "messages": orphan})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
        await say(client, [*asked, said, two, one], tools=offered)
        return "Ada"

    trajectory = await record(program, [called, "It was Ada."], tools=True)
    [text] = texts(trajectory)
    assert 0 < text.index('of {"query": "a"}') < text.index('of {"query": "b"}')
