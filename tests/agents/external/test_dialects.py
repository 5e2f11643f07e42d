"""Requests in the shapes that agents send them: Claude Code's, Codex's, and those of the SDKs with tools and forms."""

import base64
import json
from collections.abc import Sequence
from typing import Any, Literal

import httpx
import numpy as np
import pytest
from pydantic import BaseModel

from ratchet.agents.core.resources import Resources
from ratchet.agents.external.protocols import IGNORED, REFUSED
from ratchet.agents.external.translations import DIALECTS
from ratchet.core.records import Note, Trajectory
from ratchet.inference.chat_formats import WrapperFormat
from tests.helpers.gateway import learnt, numbered, record, say, texts, user
from tests.helpers.tiny import tiny_tokenizer
from tests.inference.test_messages import HERMES

pytestmark = pytest.mark.server
QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
DEFERRED = {"name": "Fetch", "description": "Fetches.", "input_schema": QUERY, "defer_loading": True}
CLAUDE_TOOLS: list[dict[str, Any]] = [{"name": "Find", "description": "Finds tools.", "input_schema": QUERY}, DEFERRED]


def calling(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"/v1/{path}", json={"model": "m", **body})
    assert answer.status_code == 200, answer.text
    given: dict[str, Any] = answer.json()
    return given


def notes(trajectory: Trajectory) -> list[str]:
    return [event.text for event in trajectory.events if isinstance(event, Note)]


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


# Claude Code


def claude_system(turn: int) -> list[dict[str, Any]]:
    return [text(f"x-anthropic-billing-header: cch={turn};"), text("You are an agent.", cache_control={"type": "e"})]


async def test_claude_codes_session_is_one_conversation() -> None:
    """Its system message behind the user's, a first line that changes, tools that a result names, settings that have no
    effect, and a failed tool."""
    same = {
        "max_tokens": 64,
        "tools": [
            *CLAUDE_TOOLS,
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
            {"name": "Coded", "input_schema": QUERY, "allowed_callers": ["code_execution_20260120"]},
        ],
        "metadata": {"user_id": "u"},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    }

    async def program(client: httpx.AsyncClient) -> str:
        messages: list[Any] = [
            {"role": "user", "content": [text("<reminder/>"), text("Who?")]},
            {"role": "system", "content": [text("Environment: here", cache_control={"type": "ephemeral"})]},
        ]
        for turn in range(3):
            said = await post(client, "messages?beta=true", system=claude_system(turn), messages=messages, **same)
            messages[1] = {"role": "system", "content": "Environment: here"}  # as its next request has it
            messages.append({"role": "assistant", "content": said["content"]})
            if turn < 2:
                result: Any = [{"type": "tool_reference", "tool_name": "Fetch"}] if turn == 0 else "no such page"
                block = {"type": "tool_result", "tool_use_id": said["content"][-1]["id"], "content": result}
                messages.append({"role": "user", "content": [{**block, "is_error": turn == 1}]})
        return str(said["content"][0]["text"])

    replies = [calling("Find", query="fetch"), calling("Fetch", query="5"), "It was Ada."]
    trajectory = await record(program, replies, tools=True)
    assert trajectory.answer == "It was Ada." and len(trajectory.conversations) == 1
    [shown] = texts(trajectory)
    assert "billing" not in shown and "web_search" not in shown and "You are an agent." in shown
    assert "Who?<|im_end|>\n<|im_start|>system\nEnvironment: here<|im_end|>" in shown
    before, _, behind = shown.partition(calling("Find", query="fetch"))
    assert "Fetches." not in before and "Fetches." in behind, "a deferred tool is described where a result names it"
    assert "<tool_response>Error: no such page</tool_response>" in shown
    assert [note.split()[8] for note in notes(trajectory)] == ["Coded,", "web_search,"]
    assert learnt(trajectory) == ["<|im_end|>".join([*replies, ""])]


async def test_the_tokens_of_a_prompt_are_counted_by_the_models_tokenizer() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        asked = {"system": claude_system(0), "messages": [user("Who?")], "tools": CLAUDE_TOOLS}
        counted = await post(client, "messages/count_tokens", **asked)
        said = await post(client, "messages", **asked, max_tokens=9)
        assert counted == {"input_tokens": said["usage"]["input_tokens"]}
        more = [user("Who?"), {"role": "assistant", "content": said["content"]}, user("Sure?")]
        counted = await post(client, "messages/count_tokens", **asked | {"messages": more})
        said = await post(client, "messages", **asked | {"messages": more}, max_tokens=9)
        assert counted == {"input_tokens": said["usage"]["input_tokens"]}
        return "Ada"

    assert len((await record(program, numbered, tools=True)).model_calls) == 2


async def test_a_template_without_a_place_for_a_late_system_message_shows_it_as_the_users() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = HERMES.replace(
        "{%- if m.role == 'tool' %}",
        "{%- if m.role == 'system' %}{{ raise_exception('late') }}{% elif m.role == 'tool' %}",
    )

    async def program(client: httpx.AsyncClient) -> str:
        messages = [user("Who?"), {"role": "system", "content": "Here."}]
        for _ in range(2):
            said = await post(client, "messages", messages=messages, max_tokens=9)
            messages += [{"role": "assistant", "content": said["content"][0]["text"]}, user("Sure?")]
        return "Ada"

    trajectory = await record(program, ["Ada", "yes"], chat=WrapperFormat.from_tokenizer(tokenizer))
    assert len(trajectory.conversations) == 1
    assert "Who?<|im_end|>\n<|im_start|>user\nHere.<|im_end|>" in texts(trajectory)[0]
    assert len(notes(trajectory)) == 1 and "a system message was shown as the user's" in notes(trajectory)[0]


async def test_a_stop_sequence_that_was_hit_is_named() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        asked = {"messages": [user("x")], "max_tokens": 20, "stop_sequences": ["\n\n", "END"]}
        hit, other = await post(client, "messages", **asked), await post(client, "messages", **asked)
        assert (hit["stop_reason"], hit["stop_sequence"]) == ("stop_sequence", "END")
        assert (other["stop_reason"], other["stop_sequence"]) == ("end_turn", None)
        return str(hit["content"][0]["text"])

    assert (await record(program, ["Ada END Bo", "Ada"])).answer == "Ada "


# Codex


CODEX_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "exec_command", "parameters": QUERY, "strict": False},
    {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [{"type": "function", "name": "wait"}]},
    {"type": "custom", "name": "patch", "description": "Edits.", "format": {"type": "grammar", "definition": "s: A"}},
    {"type": "local_shell"},
    {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": QUERY},
    {"type": "web_search", "external_web_access": False},
]


def codex_message(role: str, *parts: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": part} for part in parts]}


@pytest.mark.parametrize("streamed", [False, True])
async def test_codexs_tools_are_called_by_its_own_items(streamed: bool) -> None:
    same = {
        "instructions": "You are Codex.",
        "tools": CODEX_TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"session_id": "s"},
        "stream": streamed,
    }
    found = {"type": "function", "name": "send", "parameters": QUERY, "defer_loading": True}
    results: list[dict[str, Any]] = [
        {"type": "function_call_output", "output": "waited"},
        {"type": "custom_tool_call_output", "output": "patched"},
        {"type": "local_shell_call_output", "output": "listed"},
        {
            "type": "tool_search_output",
            "execution": "client",
            "tools": [{"type": "namespace", "name": "agents", "tools": [found]}],
        },
        {"type": "function_call_output", "output": "sent"},
    ]
    replies = [
        calling("agents__wait"),
        calling("patch", input="*** Begin\n+a"),
        calling("local_shell", command=["ls", "-l"], timeout_ms=0, env={"A": "b"}),
        calling("tool_search", query="send"),
        calling("agents__send", query="x"),
        "It was Ada.",
    ]

    async def respond(client: httpx.AsyncClient, items: Any) -> Any:
        answer = await client.post("/v1/responses", json={"model": "m", "input": items, **same})
        assert answer.status_code == 200, answer.text
        if not streamed:
            return answer.json()
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == [
            *events[-1]["response"]["output"]
        ]
        return events[-1]["response"]

    async def program(client: httpx.AsyncClient) -> str:
        items = [codex_message("developer", "Be brief.", "Read only."), codex_message("user", "Who?")]
        called: list[Any] = []
        for result in [*results, None]:
            [item] = (await respond(client, items))["output"]
            called.append({key: value for key, value in item.items() if key not in ("id", "call_id", "status")})
            items += [item, {**result, "call_id": item["call_id"]}] if result else []
        assert called[:-1] == [
            {"type": "function_call", "name": "wait", "namespace": "agents", "arguments": "{}"},
            {"type": "custom_tool_call", "name": "patch", "input": "*** Begin\n+a"},
            {
                "type": "local_shell_call",
                "action": {"type": "exec", "env": {"A": "b"}, "command": ["ls", "-l"], "timeout_ms": 0},
            },
            {"type": "tool_search_call", "execution": "client", "arguments": {"query": "send"}},
            {"type": "function_call", "name": "send", "namespace": "agents", "arguments": '{"query": "x"}'},
        ]
        return str(called[-1]["content"][0]["text"])

    trajectory = await record(program, replies, tools=True)
    assert trajectory.answer == "It was Ada." and len(trajectory.conversations) == 1
    [shown] = texts(trajectory)
    assert shown.startswith("<|im_start|>system\nYou are Codex.\n\nBe brief.\nRead only."), "one system message"
    assert "s: A" in shown and "web_search" not in shown
    assert '<tool_response>{"name": "agents__send"' in shown, "what was found is described by the name to call it by"
    assert notes(trajectory) == ["the model was not told of the tool web_search, which is the service's own"]
    assert learnt(trajectory) == ["<|im_end|>".join([*replies, ""])]


# Fields


async def test_a_field_that_changes_the_meaning_is_refused_by_its_name() -> None:
    asked: dict[str, Any] = {"responses": {"input": "x"}, "messages": {"messages": [user("x")], "max_tokens": 9}}
    fields: list[tuple[str, dict[str, Any], str]] = [
        ("chat/completions", {"functions": [{"name": "f"}]}, "functions"),
        ("chat/completions", {"logit_bias": {"5": -100}}, "logit_bias"),
        ("chat/completions", {"logprobs": True}, "logprobs"),
        ("chat/completions", {"n": 2}, "n"),
        ("chat/completions", {"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ("chat/completions", {"modalities": ["text", "audio"]}, "modalities"),
        ("responses", {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}, "include"),
        ("responses", {"conversation": "c"}, "conversation"),
        ("responses", {"prompt": {"id": "p"}}, "prompt"),
        ("responses", {"background": True}, "background"),
        ("messages", {"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ("messages", {"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ]

    async def program(client: httpx.AsyncClient) -> str:
        for path, body, param in fields:
            same = {"model": "m", **asked.get(path, {"messages": [user("x")]})}
            answer = await client.post(f"/v1/{path}", json=same | body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
            nothing: dict[str, Any] = {key: [] if isinstance(value, list) else None for key, value in body.items()}
            assert (await client.post(f"/v1/{path}", json=same | nothing)).status_code == 200
        return "Ada"

    await record(program, numbered)


def test_every_parameter_of_the_official_clients_is_in_a_column_of_the_table() -> None:
    parameters = {
        "/v1/chat/completions": ("openai.types.chat.completion_create_params", "CompletionCreateParamsBase"),
        "/v1/responses": ("openai.types.responses.response_create_params", "ResponseCreateParamsBase"),
        "/v1/messages": ("anthropic.types.beta.message_create_params", "MessageCreateParamsBase"),
    }
    ignored, refused = {*IGNORED.split()}, {*REFUSED}
    for path, (module, name) in parameters.items():
        read = {*DIALECTS[path].model_fields}
        known = {*getattr(pytest.importorskip(module), name).__annotations__}
        assert not known - read - refused - ignored and not refused & (read | ignored)


async def test_anthropics_client_goes_on_without_a_thread() -> None:
    anthropic = pytest.importorskip("anthropic")

    async def program(client: httpx.AsyncClient) -> str:
        async with anthropic.AsyncAnthropic(base_url=str(client.base_url), api_key="x", max_retries=0) as own:
            thread = own.beta.messages.thread(
                model="m", max_tokens=9, unsupported_request_behavior="continue_unthreaded"
            )
            said = await thread.send(user("Who?"))
            return str(said.content[0].text)

    assert (await record(program, ["Ada"])).answer == "Ada"


async def test_the_tool_runner_of_anthropics_client_works_in_one_conversation() -> None:
    anthropic = pytest.importorskip("anthropic")

    @anthropic.beta_async_tool
    async def search(query: str) -> str:
        """Finds."""
        raise RuntimeError(f"no {query}")

    async def program(client: httpx.AsyncClient) -> str:
        async with anthropic.AsyncAnthropic(base_url=str(client.base_url), api_key="x", max_retries=0) as own:
            runner = own.beta.messages.tool_runner(model="m", max_tokens=50, tools=[search], messages=[user("Who?")])
            return str((await runner.until_done()).content[0].text)

    trajectory = await record(program, [calling("search", query="Ada"), "unknown"], tools=True)
    assert trajectory.answer == "unknown" and len(trajectory.conversations) == 1
    assert "<tool_response>Error" in texts(trajectory)[0]


# Forms of answers beside tools


FORM = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


async def test_a_schema_beside_tools_holds_for_the_reply_without_a_call() -> None:
    offered = [{"type": "function", "function": {"name": "search", "parameters": QUERY}}]
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": FORM, "strict": True}}

    async def program(client: httpx.AsyncClient) -> str:
        messages: list[Any] = [user("Who?")]
        for _ in range(2):
            body = {"messages": messages, "tools": offered, "response_format": form}
            said = (await post(client, "chat/completions", **body))["choices"][0]["message"]
            messages.append(said)
            for call in said.get("tool_calls", ()):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "Ada"})
        body = {"messages": [*messages, user("Sure?")], "tools": offered, "response_format": form}
        assert (await post(client, "chat/completions", **body))["choices"][0]["message"]["content"] == "Ada, yes"
        return str(json.loads(said["content"])["answer"])

    replies = [calling("search", query="x"), '{"answer": "Ada"}', "Ada, yes"]
    trajectory = await record(program, replies, tools=True)
    assert trajectory.answer == "Ada" and [call.parse for call in trajectory.model_calls] == ["ok", "ok", "malformed"]


@pytest.mark.parametrize("form", ["float", "base64"])
async def test_openais_client_gets_vectors_of_the_configs_embedder(form: Literal["float", "base64"]) -> None:
    openai = pytest.importorskip("openai")

    async def program(client: httpx.AsyncClient) -> str:
        async with openai.AsyncOpenAI(base_url=f"{client.base_url}v1", api_key="x", max_retries=0) as own:
            made = await own.embeddings.create(model="any", input=["Ada", "Velm"], encoding_format=form)
            vectors = [one.embedding for one in made.data]
            if form == "base64":  # which the client reads itself where no form is asked for
                vectors = [np.frombuffer(base64.b64decode(text), "<f4").tolist() for text in vectors]
                assert vectors == [
                    one.embedding for one in (await own.embeddings.create(model="m", input=["Ada", "Velm"])).data
                ]
            assert vectors == Letters()(["Ada", "Velm"]).tolist()
            for wrong, param in (
                ({"input": "a" * 9}, "input.0"),
                ({"input": "a", "dimensions": 2}, "dimensions"),
                ({"input": [[1, 2]]}, "input"),
            ):
                with pytest.raises(openai.BadRequestError) as error:
                    await own.embeddings.create(model="any", **wrong)
                assert error.value.param == param
        await say(client, [user("Who?")])
        return "Ada"

    assert (await record(program, numbered, resources=Resources(embed=Letters()))).status == "finished"


class Letters:
    """Embeds a text by its length and its last letter, and reads no more than eight."""

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[len(text), ord(text[-1])] for text in texts], np.float32)

    def end_of(self, text: str) -> tuple[str, int]:
        return text[-8:], max(0, len(text) - 8)


class Search(BaseModel):
    """Finds."""

    query: str


class Reply(BaseModel):
    answer: str


async def test_openais_client_reads_calls_and_the_answer_of_an_agent_with_an_output_type() -> None:
    openai = pytest.importorskip("openai")

    async def program(client: httpx.AsyncClient) -> str:
        async with openai.AsyncOpenAI(base_url=f"{client.base_url}v1", api_key="x", max_retries=0) as own:
            messages: list[Any] = [user("Who?")]
            same = {"model": "m", "tools": [openai.pydantic_function_tool(Search)], "response_format": Reply}
            said = (await own.chat.completions.parse(messages=messages, **same)).choices[0].message
            [call] = said.tool_calls
            assert call.function.parsed_arguments == Search(query="Velm")
            messages += [said.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "Ada"}]
            said = (await own.chat.completions.parse(messages=messages, **same)).choices[0].message
        return str(said.parsed.answer)

    trajectory = await record(program, [calling("Search", query="Velm"), '{"answer": "Ada"}'], tools=True)
    assert trajectory.answer == "Ada" and [one.foreign_turns for one in trajectory.conversations] == [0]


@pytest.mark.parametrize(("schema", "said"), [({"type": "array", "items": FORM}, '[{"answer": "Ada"}]')])
async def test_the_root_of_a_schema_need_not_be_an_object(schema: dict[str, Any], said: str) -> None:
    async def program(client: httpx.AsyncClient) -> str:
        text_form = {"format": {"type": "json_schema", "name": "f", "schema": schema}}
        first = await post(client, "responses", input="Who?", text=text_form)
        asked = {"messages": [user("Who?")], "max_tokens": 99}
        again = await post(
            client, "messages", **asked, output_config={"format": {"type": "json_schema", "schema": schema}}
        )
        assert first["output"][0]["content"][0]["text"] == again["content"][0]["text"] == said
        return "Ada"

    trajectory = await record(program, [said, said])
    assert [call.parse for call in trajectory.model_calls] == ["ok", "ok"]


async def test_one_call_is_answered_where_a_request_takes_no_parallel_ones() -> None:
    offered = [{"type": "function", "name": "search", "parameters": QUERY}]

    async def program(client: httpx.AsyncClient) -> str:
        items: list[Any] = [user("Who?")]
        for results in (1, 0):
            output = (await post(client, "responses", input=items, tools=offered, parallel_tool_calls=False))["output"]
            assert [item["type"] for item in output] == ["function_call" if results else "message"]
            items += [*output, {"type": "function_call_output", "call_id": output[0].get("call_id"), "output": "Ada"}]
        return "Ada"

    trajectory = await record(program, [calling("search", query="a") + calling("search", query="b"), "Ada"], tools=True)
    assert [call.parse for call in trajectory.model_calls] == ["malformed", "ok"]
    assert len(trajectory.conversations) == 1 and learnt(trajectory) == ["Ada<|im_end|>"]


async def test_a_history_that_javascript_wrote_again_or_with_its_thought_is_the_same_turn() -> None:
    offered = [{"type": "function", "function": {"name": "pay", "parameters": {"type": "object"}}}]

    async def program(client: httpx.AsyncClient) -> str:
        messages: list[Any] = [user("Pay.")]
        body = {"messages": messages, "tools": offered}
        said = (await post(client, "chat/completions", **body))["choices"][0]["message"]
        said["tool_calls"][0]["function"]["arguments"] = '{"amount":5000}'
        messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "paid"}]
        said = (await post(client, "chat/completions", **body))["choices"][0]["message"]
        said["tool_calls"][0]["function"]["arguments"] = ""
        said["content"] = "<think>\nAgain?\n</think>\n\nSo."
        messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "paid"}]
        return str((await post(client, "chat/completions", **body))["choices"][0]["message"]["content"])

    replies = [calling("pay", amount=5000.0), f"<think>\nAgain?\n</think>\n\nSo.{calling('pay')}", "done"]
    trajectory = await record(program, replies, tools=True)
    assert trajectory.answer == "done" and [one.foreign_turns for one in trajectory.conversations] == [0]
