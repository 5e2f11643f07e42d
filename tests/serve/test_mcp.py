"""The tools `answer` and `verify`, called by the MCP SDK's own client: in memory, over HTTP, over stdin and stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from ratchet.retrieval.mcp_results import NOTICE
from ratchet.serve.mcp import create_server
from tests.helpers.any_system import Talker
from tests.helpers.playing import engine
from tests.helpers.served_systems import make_answerer, serving
from tests.helpers.waiting import wait_for


@pytest.fixture
def server(tmp_path: Path) -> Any:
    return create_server(make_answerer(tmp_path, engine(Talker().reply), question_characters=200))


def error_of(result: types.CallToolResult) -> str:
    (text,) = result.content
    assert result.is_error and result.structured_content is None and text.type == "text"
    return text.text


async def test_the_tools_say_what_they_take(server: Any) -> None:
    async with Client(server) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == ["answer", "verify"]
    for name, required, models in (
        ("answer", "question", ["vanilla_rag:base", "no-retrieval:base"]),
        ("verify", "claim", ["verdicts:base"]),
    ):
        tool = tools[name]
        assert tool.input_schema["required"] == [required] and tool.input_schema["additionalProperties"] is False
        offered = tool.input_schema["properties"]["model"]
        assert offered["default"] == models[0] and offered.get("enum", [offered.get("const")]) == models
        assert NOTICE in (tool.description or "") and tool.output_schema


async def test_an_answer_has_its_documents_and_reports_each_step(server: Any) -> None:
    steps: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        assert progress == len(steps) + 1
        steps.append(message or "")

    async with Client(server) as client:
        result = await client.call_tool("answer", {"question": "Who built the harbour?"}, progress_callback=note)
    answer = result.structured_content
    assert answer is not None
    assert (answer["answer"], answer["model"], answer["status"]) == ("harbour", "vanilla_rag:base", "finished")
    assert [document["text"] for document in answer["documents"]] == ["1 a fact", "2 a fact"]
    assert answer["notice"] == NOTICE
    (text,) = result.content
    assert text.type == "text" and json.loads(text.text) == answer, "old clients read the text"
    assert len(steps) == 2 and "searches: Who built the harbour?" in steps[0] and "answerer:" in steps[1]


async def test_a_claim_is_verified(server: Any) -> None:
    async with Client(server) as client:
        result = await client.call_tool("verify", {"claim": "Ada built the harbour."})
    assert result.structured_content is not None and result.structured_content["answer"] == "SUPPORTS"


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("answer", {"question": "  "}, "the question is empty"),
        ("answer", {"question": "x" * 300}, "300 characters, the limit is 200"),
        ("answer", {"question": "Who?", "model": "verdicts:base"}, "model: Input should be 'vanilla_rag:base'"),
        ("verify", {"question": "Who?"}, "claim: Field required"),
    ],
)
async def test_a_mistake_is_named_in_words_for_the_model(
    server: Any, tool: str, arguments: dict[str, Any], words: str
) -> None:
    async with Client(server) as client:
        assert words in error_of(await client.call_tool(tool, arguments))


async def test_no_answer_is_an_error(tmp_path: Path) -> None:
    async with Client(create_server(make_answerer(tmp_path, engine(lambda *_: "no JSON")))) as client:
        assert "no answer (unparsed)" in error_of(await client.call_tool("answer", {"question": "Who?"}))


@pytest.mark.server
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_over_http_beside_the_endpoint(tmp_path: Path, mode: Any) -> None:
    steps: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append(message)

    with serving(tmp_path) as server:
        async with Client(f"{server.url}/mcp", mode=mode) as client:
            result = await client.call_tool("answer", {"question": "Who?"}, progress_callback=note)
    assert result.structured_content is not None and result.structured_content["answer"] == "harbour"
    assert len(steps) == 2


@pytest.mark.server
async def test_a_call_over_http_ends_at_the_servers_limit(tmp_path: Path) -> None:
    with serving(tmp_path, delay=60, seconds=0.3) as server:
        async with Client(f"{server.url}/mcp") as client:
            assert "no answer within 0.3 s" in error_of(await client.call_tool("answer", {"question": "Who?"}))
        wait_for(lambda: server.engine.running == 0)
