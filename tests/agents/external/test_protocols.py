"""The gateway through the official clients of OpenAI and Anthropic: agents with tools, streamed or not."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from ratchet.core.records import Note
from tests.helpers.gateway import learnt, numbered, record, say, texts, user
from tests.helpers.playing import QUESTION
from tests.helpers.reward_cases import rule_score

anthropic = pytest.importorskip("anthropic")
pytestmark = pytest.mark.server
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
CALLED = '<tool_call>\n{"name": "search", "arguments": {"query": "Velm"}}\n</tool_call>'
SAID = [f"So: {CALLED}", "It was Ada."]


def openai_client(client: httpx.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{client.base_url}v1", api_key="unused", max_retries=0)


def anthropic_client(client: httpx.AsyncClient) -> Any:
    return anthropic.AsyncAnthropic(base_url=str(client.base_url), api_key="unused", max_retries=0)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_of_openais_responses(streamed: bool) -> None:
    offered: Any = [{"type": "function", "name": "search", "parameters": PARAMETERS, "strict": True}]

    async def program(client: httpx.AsyncClient) -> str:
        async with openai_client(client) as own:

            async def respond(items: Any) -> Any:
                given: Any = {"model": "agent", "instructions": "Look it up.", "input": items, "tools": offered}
                if not streamed:
                    return await own.responses.create(**given)
                deltas = list[str]()
                async with own.responses.stream(**given) as stream:
                    async for event in stream:
                        deltas += [event.delta] if event.type == "response.output_text.delta" else []
                    final = await stream.get_final_response()
                assert "".join(deltas) == final.output_text
                return final

            items: list[Any] = [user("Who?")]
            first = await respond(items)
            message, call = first.output
            assert (first.status, first.output_text, call.name) == ("completed", "So:", "search")
            assert json.loads(call.arguments) == {"query": "Velm"}
            sent = {"type": "function_call_output", "call_id": call.call_id, "output": "Ada"}
            items += [message.to_dict(), call.to_dict(), sent]
            last = await respond(items)
            assert last.output_text == "It was Ada." and last.usage.output_tokens > 1
        return last.output_text

    trajectory = await record(program, SAID, tools=True)
    assert trajectory.answer == "It was Ada." and len(trajectory.conversations) == 1
    assert "<tool_response>Ada</tool_response>" in texts(trajectory)[0] and "Look it up." in texts(trajectory)[0]
    assert learnt(trajectory) == [f"So: {CALLED}<|im_end|>It was Ada.<|im_end|>"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_of_anthropics_messages(streamed: bool) -> None:
    offered: Any = [{"name": "search", "description": "Finds.", "input_schema": PARAMETERS}]

    async def program(client: httpx.AsyncClient) -> str:
        async with anthropic_client(client) as own:

            async def respond(messages: Any) -> Any:
                given: Any = {"model": "agent", "system": "Look it up.", "messages": messages, "tools": offered}
                if not streamed:
                    return await own.messages.create(**given, max_tokens=50)
                async with own.messages.stream(**given, max_tokens=50) as stream:
                    text = "".join([part async for part in stream.text_stream])
                    final = await stream.get_final_message()
                assert text == "".join(block.text for block in final.content if block.type == "text")
                return final

            messages: list[Any] = [user("Who?")]
            first = await respond(messages)
            said, call = first.content
            assert (first.stop_reason, said.text, call.name, call.input) == (
                "tool_use",
                "So:",
                "search",
                {"query": "Velm"},
            )
            result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Ada"}]}
            messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            last = await respond(messages)
            assert last.stop_reason == "end_turn" and last.usage.output_tokens > 1
            return str(last.content[0].text)

    trajectory = await record(program, SAID, tools=True)
    assert trajectory.answer == "It was Ada." and len(trajectory.conversations) == 1
    assert "<tool_response>Ada</tool_response>" in texts(trajectory)[0]
    assert learnt(trajectory) == [f"So: {CALLED}<|im_end|>It was Ada.<|im_end|>"]


async def test_a_clients_error_says_that_no_trajectory_is_open() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        address = str(client.base_url).partition("/t/")[0]
        async with anthropic.AsyncAnthropic(base_url=address, api_key="else", max_retries=0) as own:
            for streamed in (False, True):
                asked: Any = {"model": "m", "max_tokens": 9, "messages": [user("x")], "stream": streamed}
                with pytest.raises(anthropic.AuthenticationError, match="no trajectory of this name"):
                    await own.messages.create(**asked)
        return "Ada"

    assert not (await record(program, numbered)).model_calls


def test_a_program_reports_its_steps_and_its_own_reward() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        await say(client, [user("Who?")])
        assert (await client.post("/step", json={"text": "planned"})).status_code == 200
        for body, status in (({"reward": 0.25, "text": "tests"}, 200), ({"reward": 2}, 400), ({"reward": 0.75}, 200)):
            assert (await client.post("/reward", json=body)).status_code == status
        return "Ada"

    trajectory = asyncio.run(record(program, numbered))
    notes = [event for event in trajectory.events if isinstance(event, Note)]
    assert [(note.text, note.reward) for note in notes] == [
        ("planned", None),
        ("reward 0.25: tests", 0.25),
        ("reward 0.75", 0.75),
    ]
    assert "reward" not in notes[0].model_dump()
    scores = [rule_score("reported", QUESTION, made) for made in (trajectory, asyncio.run(record(silent, numbered)))]
    assert [(score.value, score.reason) for score in scores] == [
        (0.75, "reward 0.75"),
        (None, "the agent reported no reward"),
    ]


async def silent(client: httpx.AsyncClient) -> str:
    await say(client, [user("Who?")])
    return "Ada"
