"""ratchet index: what its commands print and refuse."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.core.errors import UserError
from ratchet.retrieval.layout import read_manifest
from ratchet.retrieval.loader import open_folder
from tests.helpers.building import DOCUMENTS, SMALL, write_config, write_whole_config
from tests.helpers.commands import command_of
from tests.helpers.tiny_index import write_documents

main = command_of("index")


class Command:
    """The command in this process; returns what it printed."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = patch, capsys

    def __call__(self, *arguments: object) -> str:
        self._patch.setattr(sys, "argv", ["index_build", *map(str, arguments)])
        self._capsys.readouterr()
        main()
        return self._capsys.readouterr().out


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    documents = write_documents(tmp_path / "d.jsonl", DOCUMENTS)
    return write_config(tmp_path, [documents], shard_documents=2, **SMALL)


def test_a_build_says_what_it_did(tmp_path: Path, command: Command, config: Path) -> None:
    out = command("--config", config)
    manifest = read_manifest(tmp_path / "index")
    assert "2 shards built in" in out
    assert f"3 documents, {manifest.chunks} chunks, " in out and "2 shards," in out and " MB" in out
    assert open_folder(tmp_path / "index").digest == manifest.digest
    assert f"digest {manifest.digest}" in out
    again = command("--config", config)
    assert "already built, nothing to do" in again and f"digest {manifest.digest}" in again


def test_files_of_a_folder_that_are_not_read_are_in_the_log(
    tmp_path: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("The harbour of Velm")
    (notes / "photo.png").touch()
    command("--config", write_config(tmp_path, [notes], **SMALL))
    assert caplog.text.count("not read: 1 .png") == 1


def test_jobs_of_the_command(tmp_path: Path, command: Command, config: Path) -> None:
    first = command("--config", config, "--job", "1/2")
    assert "1 shards built in" in first and "other jobs have not finished" in first
    assert "1 shards built in" in command("--config", config, "--job", "0/2")
    assert read_manifest(tmp_path / "index").documents == 3


@pytest.mark.parametrize("job", ["2/2", "1", "-1/2", "a/b", "0/0"])
def test_a_wrong_job_is_refused(command: Command, config: Path, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("--config", config, f"--job={job}")
    assert "expected K/N with K from 0 to N-1, such as 0/4" in capsys.readouterr().err


def test_inspect_shows_sizes_and_bytes_per_posting(tmp_path: Path, command: Command) -> None:
    texts = ["mill " * 3 + "tower", "mill", "mill ship", "tower", "ship mill"]
    documents = write_documents(tmp_path / "d.jsonl", [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)])
    config = write_config(tmp_path, [documents], shard_documents=2)
    command("--config", config)
    out = command("inspect", tmp_path / "index")
    lines = [line.split() for line in out.splitlines()]
    assert "bm25 on ratchet" in out and "5 documents, 5 chunks" in out and "3 shards, 1 sources" in out
    assert ["8", "postings,", "2", "a", "chunk"] in [line for line in lines if "postings," in line]
    size = sum(path.stat().st_size for path in (tmp_path / "index").glob("shards/*/postings"))
    assert f"{size / 8:.2f} bytes a posting" in next(line for line in out.splitlines() if line.startswith("  postings"))


@pytest.mark.parametrize("index", [{"url": "http://127.0.0.1:1"}, {"source": {"service": "wikipedia"}}])
def test_what_a_server_or_a_service_holds_is_not_built(
    tmp_path: Path, command: Command, config: Path, index: dict[str, Any]
) -> None:
    served = write_whole_config(tmp_path, index)
    with pytest.raises(UserError, match="there is nothing to build"):
        command("--config", served)


def test_an_index_whose_chunks_are_counted_in_words_needs_no_model(
    tmp_path: Path, command: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").mkdir()  # of the user's own: another thing
    absent = ("--set", "models.agent.path=./no-model")
    with pytest.raises(UserError, match=r"no-model: no such model folder.*`tokenizer: words` under index no model is"):
        command("--config", config, *absent)
    assert "2 shards built" in command("--config", config, *absent, "--set", "index.tokenizer=words")
    assert read_manifest(tmp_path / "index").tokenizer == "words"


def test_without_a_tokenizer_the_config_key_is_named(tmp_path: Path, command: Command, config: Path) -> None:
    settings = yaml.safe_load(config.read_text())
    settings["models"] = {"other": settings["models"]["agent"]}
    settings |= {"training": {"model": "other"}, "system": {"roles": {"default": {"model": "other"}}}}
    config.write_text(yaml.safe_dump(settings))
    with pytest.raises(UserError, match=r"index\.tokenizer is not set"):
        command("--config", config)
    out = command("--config", config, "--set", f"index.tokenizer={tmp_path / 'model'}")
    assert "2 shards built" in out
