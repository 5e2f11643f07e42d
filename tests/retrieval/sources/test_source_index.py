"""A search service in place of an index, alone and as a part of a fused one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import IndexConfig, parse
from ratchet.core.errors import UserError
from ratchet.core.http.retry import Backoff
from ratchet.retrieval.fusion import FusedIndex
from ratchet.retrieval.index import store_of
from ratchet.retrieval.layout import index_digest
from ratchet.retrieval.opening import open_index
from ratchet.retrieval.retriever import SearchError
from ratchet.retrieval.sources import client
from ratchet.retrieval.sources.services import Searxng
from ratchet.retrieval.sources.source import SourceIndex
from tests.helpers.fake_server import Reply
from tests.helpers.tiny_index import tiny_index
from tests.helpers.web_upstream import PAPERS, Upstream

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Searxng, "per_second", 10_000)


def section(up: Upstream, folder: Path, **more: Any) -> dict[str, Any]:
    return {"source": {"service": "searxng", "url": up.url, "cache": str(folder / "cache"), **more}}


def test_a_service_is_searched_by_threads(up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BACKOFF", Backoff(tries=1))
    config = parse(IndexConfig, section(up, tmp_path), "x.yaml")
    index = open_index(config)
    assert isinstance(index, SourceIndex) and config.built == {}
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda query: index.search(query, 3), ["tides", "harbour", "tides", "Velm"]))
    assert all([passage.title for passage in one] == [paper.title for paper in PAPERS[:3]] for one in found)
    assert index.search("tides", 2, 1) == found[0][1:]
    up.faults.append(Reply(503, "busy"))
    with pytest.raises(SearchError, match=r"index\.source: .*503: busy"):
        index.search("moorings", 3)
    index.close()
    assert len(index.search("moorings", 3)) == 3, "it may be opened again"
    index.close()


def test_a_part_may_be_a_service(up: Upstream, tmp_path: Path) -> None:
    texts = [{"id": "d0", "text": "The tides of Velm."}, {"id": "d1", "text": "The harbour of Velm, with its tides."}]
    tiny_index(tmp_path, texts)
    parts = {"own": {"path": str(tmp_path / "index")}, "web": section(up, tmp_path)}
    index = open_index(parse(IndexConfig, {"kind": "fused", "parts": parts, "fusion": {"depth": 3}}, "x.yaml"))
    assert isinstance(index, FusedIndex) and store_of(index) is None
    found = index.search("tides", 10)
    assert [next(iter(passage.ranks)) for passage in found] == ["own", "web", "own", "web", "web"]
    assert found[0].id == "d0#0" and found[1].document_id == f"https://velm.example/{PAPERS[0].number}"
    for part in index.parts.values():
        if isinstance(part, SourceIndex):
            part.close()


def test_where_its_answers_are_kept_is_no_part_of_its_digest(up: Upstream, tmp_path: Path) -> None:
    def digest(**more: Any) -> str | None:
        return index_digest(parse(IndexConfig, section(up, tmp_path, **more), "x.yaml"))

    assert digest() == digest(mode="replay") == digest(cache="elsewhere") != digest(language="de")


@pytest.mark.parametrize("more", [{"mode": "local"}, {"summarise": 2}, {"max_tokens": 9}])
def test_settings_of_sources_alone_are_refused(up: Upstream, tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="of a source under `sources` alone"):
        parse(IndexConfig, section(up, tmp_path, **more), "x.yaml")
    with pytest.raises(UserError, match="with no path and no url"):
        parse(IndexConfig, section(up, tmp_path) | {"path": "indexes/x"}, "x.yaml")
