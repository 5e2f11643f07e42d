from __future__ import annotations

import gzip
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny import save_tiny_tokenizer
from tiny_index import index_config, shared_tokenizer, tiny_index, write_documents

from index_build import postings
from index_build.build import build_index, byte_positions
from index_build.chunks import Chunker
from index_build.writing import building_folder
from ratchet.config import IndexConfig
from ratchet.errors import UserError
from retrieval.index import open_index

DOCUMENTS = [
    {"id": "d0", "text": "The harbour of Velm was built by Ada Torrin. " * 8, "title": "Velm"},
    {"id": "d1", "text": "Käse, 界 and 🙂 are sold in the harbour of Orsk. " * 8},
    {"id": "d2", "text": "A short one."},
]
SMALL = {"chunk_tokens": 40, "chunk_overlap": 10}


def build(config: IndexConfig) -> bool:
    return build_index(config, shared_tokenizer(), "tiny")[1]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_config(path: Path, folder: Path, documents: Path, **index: Any) -> Path:
    split = {"path": "unused.jsonl"}
    config = {
        "run": str(folder / "run"),
        "models": {"agent": {"path": str(save_tiny_tokenizer(folder / "tokenizer"))}},
        "index": {"path": str(folder / "index"), "documents": [str(documents)], **SMALL, **index},
        "questions": {"train": split, "dev": split, "test": split},
        "rewards": {"weights": {"f1": 1}},
        "evaluation": {"scores": ["f1"]},
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_chunks_are_slices_and_map_back_to_documents(tmp_path: Path) -> None:
    index = tiny_index(tmp_path, DOCUMENTS, stop_words=False, **SMALL)
    found = {p.id: p for query in ("the", "käse", "short") for p in index.search(query, 1000)}
    cuts = Chunker(shared_tokenizer(), 40, 10, "tiny").cut([d["text"] for d in DOCUMENTS])
    expected = {
        f"{document['id']}#{number}": (document["id"], document.get("title", ""), document["text"][start:end])
        for document, spans in zip(DOCUMENTS, cuts, strict=True)
        for number, (start, end) in enumerate(spans)
    }
    assert len(expected) == len(index) == index.manifest.chunks > 6
    assert {key: (p.document_id, p.title, p.text) for key, p in found.items()} == expected


def test_a_title_is_searched_on_every_chunk(tmp_path: Path) -> None:
    index = tiny_index(tmp_path, [{"id": "a", "text": "ash birch " * 60, "title": "Zebra"}], **SMALL)
    assert len(index.search("zebra", 100)) == len(index) > 1


def test_the_same_documents_give_the_same_bytes_however_they_are_stored(tmp_path: Path) -> None:
    one = tiny_index(tmp_path / "a", DOCUMENTS, **SMALL)
    first = write_documents(tmp_path / "first.jsonl", DOCUMENTS[:1])
    rest = tmp_path / "rest.jsonl.gz"
    rest.write_bytes(gzip.compress(write_documents(tmp_path / "rest.jsonl", DOCUMENTS[1:]).read_bytes()))
    config = IndexConfig(path=str(tmp_path / "b"), documents=(str(first), str(rest)), **SMALL)
    build(config)
    two = open_index(config.path)
    assert two.digest == one.digest
    ours, theirs = files_of(tmp_path / "a" / "index"), files_of(tmp_path / "b")
    assert {k: v for k, v in ours.items() if k != "manifest.json"} == {
        k: v for k, v in theirs.items() if k != "manifest.json"
    }


def test_the_digest_follows_documents_and_settings(tmp_path: Path) -> None:
    changed = [{**DOCUMENTS[0], "title": "Welm"}, *DOCUMENTS[1:]]
    variants: list[tuple[list[dict[str, str]], dict[str, Any]]] = [
        (DOCUMENTS, {}),
        (changed, {}),
        (list(reversed(DOCUMENTS)), {}),
        (DOCUMENTS, {"k1": 1.2}),
        (DOCUMENTS, {"stemmer": None}),
        (DOCUMENTS, {"chunk_overlap": 11}),
    ]
    digests = [tiny_index(tmp_path / str(i), d, **(SMALL | s)).digest for i, (d, s) in enumerate(variants)]
    assert len(set(digests)) == len(variants)


def test_postings_sorted_in_many_slices_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_index(tmp_path / "a", DOCUMENTS, **SMALL)
    monkeypatch.setattr(postings, "SLICE", 3)
    tiny_index(tmp_path / "b", DOCUMENTS, **SMALL)
    for name in ("posting_chunks", "posting_weights", "posting_offsets"):
        assert (tmp_path / "a" / "index" / name).read_bytes() == (tmp_path / "b" / "index" / name).read_bytes()


def test_a_finished_index_is_kept_even_when_its_files_moved(tmp_path: Path) -> None:
    config = index_config(tmp_path, DOCUMENTS, **SMALL)
    assert build(config)
    before = Path(config.path).stat()
    moved = shutil.move(config.documents[0], tmp_path / "moved.jsonl")
    assert not build(config.model_copy(update={"documents": (str(moved),)}))
    assert Path(config.path).stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("change", "words"), [({"k1": 1.5}, ["k1: 0.9 there, 1.5 now"]), ({"chunk_tokens": 41}, ["chunk_tokens: 40", "41"])]
)
def test_another_setting_on_the_same_path_is_refused(tmp_path: Path, change: dict[str, Any], words: list[str]) -> None:
    config = index_config(tmp_path, DOCUMENTS, **SMALL)
    build(config)
    before = files_of(Path(config.path))
    with pytest.raises(UserError) as caught:
        build(config.model_copy(update=change))
    for word in [*words, "index.path", "delete"]:
        assert word in str(caught.value)
    assert files_of(Path(config.path)) == before


def test_other_documents_on_the_same_path_are_refused(tmp_path: Path) -> None:
    config = index_config(tmp_path, DOCUMENTS, **SMALL)
    build(config)
    write_documents(Path(config.documents[0]), DOCUMENTS[:2])
    with pytest.raises(UserError, match=r"documents: .*documents\.jsonl.* there, .* now"):
        build(config)


def test_changed_content_of_a_finished_index_is_noticed(tmp_path: Path) -> None:
    config = index_config(tmp_path, DOCUMENTS, **SMALL)
    build(config)
    path = Path(config.path) / "posting_weights"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"posting_weights has changed.*Delete this folder"):
        build(config)


def test_something_else_at_the_path_is_left_alone(tmp_path: Path) -> None:
    config = index_config(tmp_path, DOCUMENTS)
    Path(config.path).mkdir()
    (Path(config.path) / "diary.txt").write_text("mine")
    with pytest.raises(UserError, match="not an index"):
        build(config)
    assert files_of(Path(config.path)) == {"diary.txt": b"mine"}


def test_bad_settings_and_documents_leave_nothing(tmp_path: Path) -> None:
    config = index_config(tmp_path, DOCUMENTS)
    for bad, words in (
        ({"stemmer": "englisch"}, "did you mean 'english'"),
        ({"documents": ()}, r"index\.documents"),
        ({"documents": ("nowhere.jsonl",)}, r"nowhere\.jsonl: cannot read"),
        ({"documents": config.documents * 2}, "already used"),
    ):
        with pytest.raises(UserError, match=words):
            build(config.model_copy(update=bad))
    assert [path.name for path in tmp_path.iterdir()] == ["documents.jsonl"]


def test_ctrl_c_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = index_config(tmp_path, DOCUMENTS)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(postings.Postings, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        build(config)
    assert [path.name for path in tmp_path.iterdir()] == ["documents.jsonl"]


def test_a_full_disk_is_a_clear_message(tmp_path: Path) -> None:
    config = index_config(tmp_path, [{"id": f"d{i}", "text": "harbour " * 500} for i in range(30)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UserError, match=r"index: cannot write .*run the same command again"):
            build(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["documents.jsonl"]
    assert build(config)


def test_a_second_builder_is_refused(tmp_path: Path) -> None:
    config = index_config(tmp_path, DOCUMENTS)
    with building_folder(Path(config.path)), pytest.raises(UserError, match="another process is building"):
        build(config)


def test_sigkill_leaves_no_index_and_the_next_build_clears_up(tmp_path: Path) -> None:
    documents = write_documents(
        tmp_path / "d.jsonl", ({"id": f"d{i}", "text": f"harbour {i} " * 400} for i in range(4000))
    )
    config = write_config(tmp_path / "config.yaml", tmp_path, documents)
    command = [sys.executable, "-m", "index_build", "--config", str(config)]
    texts = tmp_path / ".index.building" / "texts.utf8"
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not (texts.exists() and texts.stat().st_size > 0):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    assert not (tmp_path / "index").exists()
    assert texts.exists()
    write_documents(documents, DOCUMENTS)
    index_settings = IndexConfig(path=str(tmp_path / "index"), documents=(str(documents),), **SMALL)
    assert build(index_settings)
    assert not texts.parent.exists()
    assert open_index(index_settings.path).search("Torrin", 1)[0].document_id == "d0"


def test_a_corpus_of_stop_words_has_no_postings_and_finds_nothing(tmp_path: Path) -> None:
    index = tiny_index(tmp_path, [{"id": "a", "text": "to be or not to be"}])
    assert len(index) == 1 and index.manifest.postings == 0
    assert index.search("to be", 5) == []


def test_byte_positions_of_every_width() -> None:
    text = "aé界🙂z"
    assert byte_positions(text).tolist() == [len(text[:i].encode()) for i in range(len(text) + 1)]
    assert byte_positions("abc").tolist() == [0, 1, 2, 3]


def test_command_builds_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from index_build.__main__ import main

    config = write_config(tmp_path / "config.yaml", tmp_path, write_documents(tmp_path / "d.jsonl", DOCUMENTS))
    for words in ("built in", "already built"):
        monkeypatch.setattr(sys, "argv", ["index_build", "--config", str(config)])
        main()
        out = capsys.readouterr().out
        assert words in out and "3 documents" in out and open_index(tmp_path / "index").digest in out
