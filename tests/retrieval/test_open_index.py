from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from tiny_index import tiny_index

from ratchet.errors import UserError
from retrieval.__main__ import main
from retrieval.index import open_index

DOCUMENTS = [
    {"id": "d0", "text": "The harbour of Velm was built by Ada Torrin. " * 30, "title": "Velm"},
    {"id": "d1", "text": "Orsk has no harbour, only \x1b[31mred\x1b[0m boats.\x07"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_index(tmp_path, DOCUMENTS)
    return tmp_path / "index"


def test_no_index_says_how_to_build_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: there is no index here; build it with `python -m index_build"):
        open_index(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["posting_chunks", "texts.utf8", "terms.offsets"])
def test_a_file_cut_short_or_missing_is_named(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1])
    with pytest.raises(UserError, match=rf"{name} has {len(data) - 1} bytes.*{len(data)}.*Delete this folder"):
        open_index(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"cannot read {name}"):
        open_index(folder)


def test_a_damaged_manifest_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    good = json.loads(path.read_text())
    for bad in ("{", json.dumps({**good, "chunks": "many"}), json.dumps({**good, "format": 99})):
        path.write_text(bad)
        with pytest.raises(UserError, match="cannot be used"):
            open_index(folder)
    files = {name: entry for name, entry in good["files"].items() if name != "posting_chunks"}
    path.write_text(json.dumps({**good, "files": files}))
    with pytest.raises(UserError, match="does not name posting_chunks"):
        open_index(folder)
    path.write_text(json.dumps({**good, "chunks": 1000}))
    with pytest.raises(UserError, match="do not fit together"):
        open_index(folder)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    split = {"path": "unused.jsonl"}
    config = {
        "run": "unused",
        "models": {"agent": {"path": "unused"}},
        "index": {"path": str(folder)},
        "questions": {"train": split, "dev": split, "test": split},
        "rewards": {"weights": {"f1": 1}},
        "evaluation": {"scores": ["f1"]},
    }
    path = folder.parent / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setattr(sys, "argv", ["retrieval", *arguments, "--config", str(path)])
    main()


def test_command_prints_ranks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder, monkeypatch, "harbour of Velm")
    out = capsys.readouterr().out
    heads = [line.split() for line in out.splitlines() if "#" in line]
    assert [(rank, *rest) for rank, _, *rest in heads] == [("1", "d0#0", "Velm"), ("2", "d1#0")]
    assert "\x1b" not in out and "\x07" not in out, "a document must not steer the terminal"
    assert " ..." in out
    run(folder, monkeypatch, "harbour of Velm", "-k", "1", "--offset", "1")
    out = capsys.readouterr().out
    assert "  2  " in out and "d1#0" in out and "d0#0" not in out
    run(folder, monkeypatch, "harbour of Velm", "--full")
    assert " ..." not in capsys.readouterr().out


def test_command_without_a_match_and_with_bad_numbers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder, monkeypatch, "zebra")
    assert "no passage matches" in capsys.readouterr().out
    with pytest.raises(UserError, match="-k must be at least 1"):
        run(folder, monkeypatch, "harbour", "-k", "0")
