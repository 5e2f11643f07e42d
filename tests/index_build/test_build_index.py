"""What a build makes of documents, and what it refuses."""

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.core.config import IndexConfig
from ratchet.core.errors import UserError
from ratchet.index_build.chunks import Chunker
from ratchet.retrieval.layout import read_manifest
from ratchet.retrieval.loader import open_folder
from tests.helpers.building import DOCUMENTS, SMALL, build, built, content, corpus, queries, results, tree
from tests.helpers.tiny_index import index_config, shared_tokenizer, tiny_index, write_documents


def test_chunks_are_slices_and_map_back_to_documents(tmp_path: Path) -> None:
    index = tiny_index(tmp_path, DOCUMENTS, **SMALL)
    found = {p.id: p for query in ("harbour", "käse", "short") for p in index.search(query, 1000)}
    cuts = Chunker(shared_tokenizer(), 40, 10, "tiny").cut([d["text"] for d in DOCUMENTS])
    expected = {
        f"{document['id']}#{number}": (document["id"], document.get("title", ""), document["text"][start:end])
        for document, spans in zip(DOCUMENTS, cuts, strict=True)
        for number, (start, end) in enumerate(spans)
    }
    assert len(expected) == len(index) == read_manifest(tmp_path / "index").chunks > 6
    assert {key: (p.document_id, p.title, p.text) for key, p in found.items()} == expected


@pytest.mark.slow
def test_shards_change_nothing_that_is_found(tmp_path: Path) -> None:
    """Ids, texts and scores to the last bit: BM25's statistics are those of the whole index."""
    documents = corpus(150)
    whole = results(tiny_index(tmp_path / "one", documents, **SMALL), queries(40))
    cut = index_config(tmp_path / "many", documents, shard_documents=37, **SMALL)
    manifest = built(cut)
    assert [shard.documents for shard in manifest.shards] == [37, 37, 37, 37, 2]
    assert results(cut.path, queries(40)) == whole
    assert sum(map(len, whole)) > 500


@pytest.mark.parametrize("kind", ["gzip", "parquet", "two sources"])
def test_the_same_documents_give_the_same_bytes_however_they_are_stored(tmp_path: Path, kind: str) -> None:
    one = tiny_index(tmp_path / "a", DOCUMENTS, shard_documents=2, **SMALL)
    plain = write_documents(tmp_path / "d.jsonl", DOCUMENTS)
    if kind == "gzip":
        (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
        sources = [tmp_path / "d.jsonl.gz"]
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist([{"title": None, **row} for row in DOCUMENTS]), tmp_path / "d.parquet")
        sources = [tmp_path / "d.parquet"]
    else:
        sources = [
            write_documents(tmp_path / f"{i}.jsonl", part) for i, part in enumerate([DOCUMENTS[:2], DOCUMENTS[2:]])
        ]
    config = IndexConfig(path=str(tmp_path / "b"), documents=tuple(map(str, sources)), shard_documents=2, **SMALL)
    assert built(config).digest == one.digest
    assert content(tmp_path / "b") == content(tmp_path / "a" / "index")


def test_a_folder_of_texts(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    for document in DOCUMENTS:
        (folder / "sub").mkdir(parents=True, exist_ok=True)
        (folder / "sub" / f"{document['id']}.txt").write_text(document["text"])
    rows = [{"id": f"sub/{d['id']}.txt", "title": d["id"], "text": d["text"]} for d in DOCUMENTS]
    one = tiny_index(tmp_path / "a", rows, **SMALL)
    config = IndexConfig(path=str(tmp_path / "b"), documents=(str(folder),), **SMALL)
    assert built(config).digest == one.digest
    (folder / "sub" / "d2.txt").write_text("Another one.")
    with pytest.raises(UserError, match=r"documents: .*texts"):
        build(config)


def test_a_finished_index_is_kept_even_when_its_sources_moved_or_are_gone(tmp_path: Path) -> None:
    config = index_config(tmp_path, DOCUMENTS, shard_documents=2, **SMALL)
    assert build(config) == 2
    before = tree(Path(config.path))
    moved = Path(shutil.move(config.documents[0], tmp_path / "moved.jsonl"))
    there = config.model_copy(update={"documents": (str(moved),)})
    assert build(there) == 0
    moved.unlink()
    assert build(there) == 0
    after = tree(Path(config.path))
    assert {**after, "plan.json": b""} == {**before, "plan.json": b""}


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"stemmer": None}, "stemmer: 'english' there, None now"),
        ({"chunk_tokens": 41}, "chunk_tokens: 40 there, 41 now"),
        ({}, r"documents: .*documents\.jsonl.* there, .* now"),
    ],
)
def test_another_index_on_the_same_path_is_refused(tmp_path: Path, change: dict[str, Any], difference: str) -> None:
    config = index_config(tmp_path, DOCUMENTS, **SMALL)
    build(config)
    before = tree(Path(config.path))
    if not change:
        write_documents(Path(config.documents[0]), DOCUMENTS[:2])
    with pytest.raises(UserError, match=rf"{difference}(.|\n)*index\.path=.*, delete"):
        build(config.model_copy(update=change))
    assert tree(Path(config.path)) == before


@pytest.mark.parametrize("state", ["finished", "half"])
def test_a_build_over_an_index_of_another_format_says_at_once_to_delete_all_of_it(tmp_path: Path, state: str) -> None:
    """And not one part after the other."""
    config = index_config(tmp_path, DOCUMENTS, shard_documents=1, **SMALL)
    build(config, job=(0, 2) if state == "half" else None)
    target = Path(config.path)
    for path in [*target.glob("shards/*/shard.json"), *target.glob("manifest.json")]:
        manifest = json.loads(path.read_text()) | {"format": 3}
        del manifest["chunks"]  # other versions have other fields
        path.write_text(json.dumps(manifest))
    with pytest.raises(
        UserError, match=rf"^{target}: .*format 3, and this version reads format 5\. Delete this folder"
    ):
        build(config)
    shutil.rmtree(target)
    build(config)


def test_a_shard_of_another_index_is_not_taken_over(tmp_path: Path) -> None:
    for name in ("one", "two"):
        build(index_config(tmp_path / name, corpus(4, len(name) + ord(name[0])), shard_documents=2, **SMALL))
    shard = tmp_path / "one" / "index" / "shards" / "00001"
    shutil.rmtree(shard)
    shutil.copytree(tmp_path / "two" / "index" / "shards" / "00001", shard)
    config = IndexConfig(
        path=str(tmp_path / "one" / "index"), documents=(str(tmp_path / "one" / "documents.jsonl"),), **SMALL
    )
    with pytest.raises(UserError, match=r"00001: is a shard of another index; delete it"):
        build(config)
    shutil.rmtree(shard)
    assert build(config) == 1
    open_folder(config.path)


@pytest.mark.parametrize("then", ["finished", "half", "added"])
def test_changed_content_is_noticed_by_the_next_build(tmp_path: Path, then: str) -> None:
    """Also where that build lists more shards: it must not take the old ones for checked."""
    config = index_config(tmp_path, DOCUMENTS, shard_documents=2, **SMALL)
    build(config, job=(0, 2) if then == "half" else None)
    path = Path(config.path) / "shards" / "00000" / "postings"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    os.utime(path)
    path.write_bytes(data)
    if then == "added":
        more = write_documents(tmp_path / "more.jsonl", corpus(3, name="e"))
        config = config.model_copy(update={"documents": (*config.documents, str(more))})

    def build_and_open() -> None:
        build(config)
        open_folder(config.path)

    with pytest.raises(UserError, match=r"00000: .*content of postings has changed.*Delete 00000 and run"):
        build_and_open()
    shutil.rmtree(path.parent)
    build(config)
    assert open_folder(config.path).search("Torrin", 1)[0].document_id == "d0"


def test_bad_settings_and_documents_leave_nothing(tmp_path: Path) -> None:
    config = index_config(tmp_path, DOCUMENTS)
    bad_line = tmp_path / "bad.jsonl"
    bad_line.write_text('{"id": "a", "text": "A"}\n{"id": "b"}\n')
    for bad, words in (
        ({"stemmer": "englisch"}, "did you mean 'english'"),
        ({"documents": ()}, r"index\.documents"),
        ({"documents": ("nowhere.jsonl",)}, r"nowhere\.jsonl: cannot read"),
        ({"documents": (str(bad_line),)}, r"bad\.jsonl:2: a document needs a field 'text'"),
        ({"documents": config.documents * 2}, "already used"),
    ):
        with pytest.raises(UserError, match=words):
            build(config.model_copy(update=bad))
    assert tree(Path(config.path)) == {}
    assert build(config) == 1
