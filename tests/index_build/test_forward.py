"""The rows of an index folder: made for every shard, checked, made again, and cleared away."""

from __future__ import annotations

from pathlib import Path

import pytest

from index_build import forward
from index_build.forward import build_rows
from index_build.inspection import main as inspect
from ratchet.config import IndexConfig, SearchConfig
from ratchet.errors import UserError
from retrieval.index import Index
from retrieval.layout import ROWS
from retrieval.loader import open_index
from retrieval.sparse.forward import RowEngine
from retrieval.sparse.ranker import SparseRanker
from tests.helpers.building import SMALL, built, corpus, with_sources
from tests.helpers.tiny_index import index_config, write_documents

DOCUMENTS = corpus(30)


@pytest.fixture
def config(tmp_path: Path) -> IndexConfig:
    from tests.helpers import plain_encoders

    encoder = {"path": str(plain_encoders.save_llama(tmp_path / "lion")), "device": "cpu", "dtype": "float32"}
    questions = write_documents(tmp_path / "questions.jsonl", [{"question": d["text"][:30]} for d in DOCUMENTS])
    search = SearchConfig(recall=0.5, questions=str(questions))
    settings = {"kind": "sparse", "encoder": encoder, "shard_documents": 12, "search": search, **SMALL}
    return index_config(tmp_path, DOCUMENTS[:20], **settings)


def reads_rows(config: IndexConfig) -> bool:
    index = open_index(config)
    assert isinstance(index, Index) and isinstance(index.ranker, SparseRanker)
    return isinstance(index.ranker.engine, RowEngine)


@pytest.mark.slow
def test_every_shard_has_them_once_and_a_search_that_may_miss_some_reads_them(
    tmp_path: Path, config: IndexConfig
) -> None:
    folder = Path(config.path)
    manifest = built(config)
    assert not reads_rows(config)
    build_rows(folder, manifest)
    assert reads_rows(config)
    assert not reads_rows(config.model_copy(update={"search": SearchConfig()}))
    before = {path: path.stat().st_mtime_ns for path in (folder / ROWS).glob("*/*")}

    config = with_sources(config, write_documents(tmp_path / "more.jsonl", DOCUMENTS[20:]))
    manifest = built(config)
    assert not reads_rows(config)  # the new shard has none yet
    build_rows(folder, manifest)
    assert reads_rows(config)
    after = {path: path.stat().st_mtime_ns for path in (folder / ROWS).glob("*/*")}
    assert before.items() < after.items()

    (folder / ROWS / "00001").rename(folder / ROWS / "00007")
    build_rows(folder, manifest)
    assert reads_rows(config)
    assert sorted(path.name for path in (folder / ROWS).iterdir()) == ["00000", "00001", "00002"]


def test_damaged_ones_are_refused(config: IndexConfig, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(config.path)
    build_rows(folder, built(config))
    inspect([config.path, "--verify"])
    path = folder / ROWS / "00001" / "rows"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"00001: .*rows has changed"):
        open_index(config)


def test_terms_that_have_no_room_in_a_row_leave_the_index_without_them(
    config: IndexConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "MOST_VOCABULARY", 4)
    build_rows(Path(config.path), built(config))
    assert not (Path(config.path) / ROWS).exists()
    assert not reads_rows(config)
