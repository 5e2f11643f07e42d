"""Odd answers of search servers: each is the failure of one search. Of these, web services and MCP servers no more is
read than an answer can be."""

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.core.config import McpConfig
from ratchet.core.http.retry import Backoff
from ratchet.retrieval.backends import remote as remote_index
from ratchet.retrieval.backends.remote import RemoteIndex
from ratchet.retrieval.retriever import SourceError
from ratchet.retrieval.sources import client as web_client
from ratchet.retrieval.sources import mcp as mcp_client
from ratchet.retrieval.sources.mcp import McpSource
from tests.helpers.fake_server import Reply
from tests.helpers.odd_answers import DEEP, ODD, bomb, wire
from tests.helpers.served import QUICK
from tests.helpers.web_upstream import KEY, opened
from tests.helpers.wire_server import Server, failure, running

pytestmark = pytest.mark.server

FAST = Backoff(tries=2, first=0.01, longest=0.02)
PASSAGE = {"id": "d:0", "document_id": "d", "text": "The harbour", "title": "", "score": 1.0}
GOOD = wire(json.dumps({"digest": "x", "passages": [PASSAGE]}).encode())
INDEXES = {"indexes": [{"name": "only", "digest": "x", "chunks": 1}], "limits": {}}


@pytest.fixture
def odd() -> Iterator[Server]:
    with running() as server:
        yield server


def answer_with(server: Server, fault: Reply) -> None:
    """To every POST; a GET is the list of indexes."""
    server.judge = lambda body: failure(raw=json.dumps(INDEXES)) if body is None else fault


STRANGE = ODD | {
    "a score that is no number": wire(json.dumps({"digest": "x", "passages": [PASSAGE | {"score": 1e999}]}).encode()),
    "half a surrogate pair": wire(json.dumps({"digest": "x", "passages": [PASSAGE | {"text": "\ud800"}]}).encode()),
    "texts of another type": wire(json.dumps({"digest": "x", "passages": [PASSAGE | {"text": 7}]}).encode()),
    "nothing there": wire(DEEP, 404),
}


@pytest.mark.parametrize("answer", STRANGE.values(), ids=STRANGE)
def test_an_odd_answer_of_a_search_server_fails_one_search(answer: bytes, odd: Server) -> None:
    answer_with(odd, failure(wire=answer))
    remote = RemoteIndex(odd.url, backoff=FAST)
    with pytest.raises(SourceError) as caught:  # which fails a trajectory; UserError would end the command
        remote.search("harbour", 1)
    assert len(str(caught.value)) < 600
    odd.faults = [failure(wire=wire(b"<html>Bad gateway</html>"))]
    answer_with(odd, failure(wire=GOOD))
    assert [passage.id for passage in remote.search("harbour", 1)] == ["d:0"]
    remote.close()


async def test_no_more_is_read_than_an_answer_can_be(
    odd: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAVILY_API_KEY", KEY)
    for module in (remote_index, web_client, mcp_client):
        monkeypatch.setattr(module, "MAX_BYTES", 1 << 20)
    answer_with(odd, failure())
    remote, packed = RemoteIndex(odd.url, backoff=QUICK), bomb(256)
    web = opened(odd, "tavily", tmp_path)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        for fault in (failure(wire=packed), failure(flood=1 << 30)):
            answer_with(odd, fault)
            tracemalloc.reset_peak()
            with pytest.raises(SourceError, match="more than 1 MiB is not read"):
                await asyncio.to_thread(remote.search, "harbour", 1)
            with pytest.raises(SourceError, match="more than 1 MiB is not read"):
                await web.search("harbour", 1)
            mcp = McpSource("other", McpConfig(url=odd.url))
            with pytest.raises(SourceError, match=r"more than 1 MiB is not read|is packed"):
                await mcp.tools()
            await mcp.close()
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert odd.flooded < 32 << 20
    remote.close()
    await web.close()
