"""`ratchet mcp` as a process of its own, over stdin and stdout and over HTTP, and `ratchet search`."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from ratchet.commands.main import run as ratchet
from ratchet.core.config import McpConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Passage
from ratchet.retrieval.loader import open_folder
from ratchet.retrieval.sources.mcp import McpSource
from tests.helpers.configs import write_config
from tests.helpers.experiment import preloaded
from tests.helpers.tiny_index import tiny_index

pytestmark = pytest.mark.server

DOCUMENTS = [{"id": f"d{i}", "text": f"harbour number {i} of Velm", "title": "A port"} for i in range(30)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcp")
    tiny_index(folder, DOCUMENTS)
    return write_config(folder, sources={"web": {"service": "tavily", "mode": "local"}})


def command(config: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "ratchet", "mcp", "--config", str(config), *arguments]


@pytest.fixture(scope="module")
def http(config: Path) -> Iterator[str]:
    line = command(config, "--http", "--port", "0")
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=preloaded())
    try:
        assert process.stderr is not None
        assert "in place of tavily" in process.stderr.readline(), "an offline source says so, and not on stdout"
        said = process.stderr.readline()
        assert said.startswith("serving MCP on http://127.0.0.1:"), said + process.stderr.read()
        yield said.split()[-1]
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=300)
        assert (process.returncode, out) == (0, "") and "Traceback" not in log
    finally:
        process.kill()
        process.communicate()


async def check(client: Client, config: Path) -> None:
    """What the SDK's own client gets is what the index gives."""
    assert [tool.name for tool in (await client.list_tools()).tools] == ["search", "fetch", "web"]
    wanted = [p.text for p in open_folder(config.parent / "index").search("harbour Velm", 3)]
    for tool in ("search", "web"):
        result = await client.call_tool(tool, {"query": "harbour Velm", "k": 3})
        assert result.structured_content is not None
        assert [found["text"] for found in result.structured_content["results"]] == wanted
    refused = await client.call_tool("search", {"query": "harbour", "k": 99})
    assert refused.is_error


async def check_source(settings: McpConfig, config: Path) -> None:
    """Our own client: the index as a source, at any depth."""
    index, source = open_folder(config.parent / "index"), McpSource("far", settings)
    try:
        for k, offset in ((3, 0), (25, 0), (5, 22), (50, 0), (1, 29), (3, 30)):
            wanted = [
                Passage(id=f"far:{p.id}", document_id=p.document_id, title=p.title, text=p.text, score=p.score)
                for p in index.search("harbour Velm", k, offset)
            ]
            assert await source.search("harbour Velm", k, offset) == wanted
        (one,) = (await source.call("fetch", {"id": "d7"}, 5)).passages
        assert one.text == "harbour number 7 of Velm"
    finally:
        await source.close()


async def test_over_stdin_and_stdout(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = command(config)
    async with Client(StdioServerParameters(command=program, args=arguments, env=preloaded())) as client:
        await check(client, config)
    variables = {name: value for name, value in preloaded().items() if value}  # an empty one counts as not set
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    await check_source(McpConfig(command=tuple(command(config)), env=tuple(variables)), config)


async def test_over_http(http: str, config: Path) -> None:
    async with Client(http) as client:
        await check(client, config)
    async with Client(http, mode="legacy") as client:
        await check(client, config)
    await check_source(McpConfig(url=http), config)


# In this process


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    ratchet([*map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "index.path=nowhere"], "nowhere"),
        (["--set", "sources={search: {service: mcp, command: [python]}}"], r"sources\.search"),
    ],
)
def test_mistakes_on_the_command_line(
    config: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        run(monkeypatch, "mcp", "--config", config, *arguments)


def test_a_source_of_the_config_is_searched(
    http: str, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = f"sources={{far: {{service: mcp, url: '{http}'}}, gone: {{service: mcp, url: 'http://127.0.0.1:9/mcp'}}}}"
    run(monkeypatch, "search", "harbour Velm", "--source", "far", "-k", 2, "--config", config, "--set", sources)
    heads = re.findall(r"^ +(\d+)  [\d.]+  (\S+)", capsys.readouterr().out, re.MULTILINE)
    wanted = open_folder(config.parent / "index").search("harbour Velm", 2)
    assert heads == [(str(rank), f"far:{passage.id}") for rank, passage in enumerate(wanted, 1)]
    with pytest.raises(UserError, match=r"--source fat: .*did you mean 'far'"):
        run(monkeypatch, "search", "harbour", "--source", "fat", "--config", config, "--set", sources)
    with pytest.raises(UserError, match=r"--source gone: .*no MCP server answers"):
        run(monkeypatch, "search", "harbour", "--source", "gone", "--config", config, "--set", sources)
