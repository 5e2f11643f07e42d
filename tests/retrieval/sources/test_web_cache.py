"""The cache of responses: what was asked once is answered from the disk, and replay never asks."""

import asyncio
import json
from pathlib import Path

import pytest

from ratchet.retrieval.retriever import SourceError
from tests.helpers.web_upstream import Upstream, opened, stored

pytestmark = pytest.mark.server


async def test_the_same_request_is_sent_once(up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = opened(up, "tavily", tmp_path)
    found = await asyncio.gather(*(source.search("tide", 3) for _ in range(8)))
    assert len(up.requests) == 1 and found == [found[0]] * 8
    monkeypatch.setenv("RATCHET_CONTACT", "somebody@else.example")
    again = opened(up, "tavily", tmp_path)
    assert await again.search("tide", 3) == found[0] and len(up.requests) == 1
    await again.search("tide", 4)
    await again.search("tide", 1, 2)  # the first three, which are there
    assert len(up.requests) == 2
    assert again.digest == source.digest


async def test_replay_never_connects_and_needs_no_key(
    up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = opened(up, "tavily", tmp_path)
    found = await live.search("tide", 3)
    monkeypatch.delenv("TAVILY_API_KEY")
    replay = opened(up, "tavily", tmp_path, mode="replay")
    assert await replay.search("tide", 3) == found and replay.digest == live.digest
    with pytest.raises(SourceError, match=r"no stored answer for 'ebb' \(.*is not there\); mode: live would fetch"):
        await replay.search("ebb", 3)
    (file,) = stored(tmp_path)
    file.write_text(file.read_text()[:-20])
    with pytest.raises(SourceError, match=rf"{file.name} is damaged"):
        await replay.search("tide", 3)
    assert len(up.requests) == 1


@pytest.mark.parametrize("damage", ["", "[]", '{"response": 3}', '{"request": {}, "response": "{}"}', "\udcff"])
async def test_a_damaged_file_is_fetched_again(damage: str, up: Upstream, tmp_path: Path) -> None:
    source = opened(up, "tavily", tmp_path)
    found = await source.search("tide", 3)
    (file,) = stored(tmp_path)
    before = file.read_text()
    file.write_bytes(damage.encode(errors="surrogateescape"))
    assert await source.search("tide", 3) == found
    assert len(up.requests) == 2
    assert json.loads(file.read_text())["response"] == json.loads(before)["response"]
