"""Opening indexes: what is whole opens at once, what is not is refused with the way out, and is never searched."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratchet.commands.main import run as ratchet
from ratchet.core.config import IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Passage
from ratchet.index_build.build import build_index
from ratchet.retrieval.layout import VERIFIED, Manifest, read_manifest, read_shards, verify
from ratchet.retrieval.loader import open_folder
from tests.helpers.commands import command_of
from tests.helpers.configs import write_config
from tests.helpers.tiny_index import shared_tokenizer, tiny_index

inspect = command_of("index", "inspect")

DOCUMENTS = [
    {"id": "d0", "text": "The harbour of Velm was built by Ada Torrin. " * 30, "title": "Velm"},
    {"id": "d1", "text": "Orsk has no harbour, only \x1b[31mred\x1b[0m boats.\x07"},
    {"id": "d2", "text": "A harbour harbour harbour without ships."},
]
QUERIES = ("harbour of Velm", "red boats", "ships")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards."""
    folder = tmp_path_factory.mktemp("built")
    tiny_index(folder, DOCUMENTS, shard_documents=2)
    open_folder(folder / "index")
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy with the same times, so that nothing is checked a second time unless it changes."""
    shutil.copytree(built / "index", tmp_path / "index")
    return tmp_path / "index"


def found(folder: Path) -> list[list[Passage]]:
    return open_folder(folder).search_batch(QUERIES, 10)


def checked(folder: Path) -> int:
    """How many files an opening reads."""
    manifest = read_manifest(folder)
    return verify(folder, manifest, read_shards(folder, manifest))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def data_files(folder: Path) -> list[Path]:
    files = [path for path in folder.glob("shards/*/*") if path.name != "shard.json" and path.stat().st_size]
    return sorted(files)


# Not there, or not an index


@pytest.mark.parametrize("known", [1, 2, None, "3"])
def test_another_format_is_refused(folder: Path, known: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": known}))
    with pytest.raises(UserError, match=rf"{folder}: .*format {known}, and this version reads format 5\. Delete this"):
        open_folder(folder)


def test_words_that_were_split_by_older_rules_are_refused(folder: Path) -> None:
    """An index from before the rules had a number: its manifest has none."""
    old = read_manifest(folder).model_dump(mode="json")
    del old["settings"]["word_rules"]
    old["digest"] = Manifest.model_validate(old).content
    (folder / "manifest.json").write_text(json.dumps(old))
    with pytest.raises(UserError, match=rf"{folder}: .*split into words.*rebuild it with `ratchet index"):
        open_folder(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 3}', b"7"])
def test_a_damaged_manifest_is_refused(folder: Path, content: bytes) -> None:
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(
        UserError, match=rf"{folder}: the index cannot be used: .*Delete this folder and rebuild it with"
    ):
        open_folder(folder)


# Parts missing or of another index


def test_a_shard_that_is_missing_is_named_and_built_again(built: Path) -> None:
    config = IndexConfig(path=str(built / "index"), documents=(str(built / "documents.jsonl"),), shard_documents=2)
    before = found(built / "index")
    shutil.rmtree(built / "index" / "shards" / "00001")
    with pytest.raises(UserError, match=r"shards/00001: .*cannot read shard\.json.*and run `ratchet index"):
        open_folder(built / "index")
    build_index(config, shared_tokenizer(), "tiny")
    assert found(built / "index") == before


@pytest.mark.parametrize("name", ["postings", "texts.utf8", "titles.offsets", "lengths", "document_hashes"])
def test_a_file_cut_short_or_missing_is_named(folder: Path, name: str) -> None:
    path = folder / "shards" / "00000" / name
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(UserError, match=rf"00000: .*{name} has {len(data) - 1} bytes.*{len(data)}.*Delete 00000 and"):
        open_folder(folder)
    path.unlink()
    with pytest.raises(UserError, match=rf"00000: .*cannot read {name}.*Delete 00000 and"):
        open_folder(folder)


def test_shards_of_another_place_are_refused(folder: Path) -> None:
    first, second = folder / "shards" / "00000", folder / "shards" / "00001"
    good = (first / "shard.json").read_bytes()
    (first / "shard.json").write_bytes((second / "shard.json").read_bytes())
    with pytest.raises(UserError, match="00000: "):
        open_folder(folder)
    (first / "shard.json").write_bytes(good)
    found(folder)
    # Whole folders that changed places: each fits together in itself.
    first.rename(folder / "aside")
    second.rename(first)
    (folder / "aside").rename(second)
    with pytest.raises(UserError, match=r"00000: .*shard\.json is not the one that manifest\.json lists"):
        open_folder(folder)


# Bytes that changed


@pytest.mark.slow
def test_a_flipped_byte_in_any_file_is_refused_until_it_is_mended(folder: Path) -> None:
    before = found(folder)
    files = data_files(folder)
    assert len(files) > 25
    for path in files:
        data = path.read_bytes()
        for at in {0, len(data) // 2, len(data) - 1}:
            flip(path, at)
            for _ in range(2):  # what was refused once is not taken for checked
                with pytest.raises(UserError, match=rf"{path.parent}: .*{path.name} has changed.* Delete .*again"):
                    open_folder(folder)
            path.write_bytes(data)
    assert found(folder) == before


def test_only_what_was_touched_is_read_again(folder: Path) -> None:
    assert checked(folder) == 0
    path = folder / "shards" / "00001" / "lengths"
    os.utime(path, ns=(1, 1))
    assert checked(folder) == 1
    assert checked(folder) == 0
    for content in ("", "[]", "{", '{"shards/00001/lengths": 7}'):
        (folder / VERIFIED).write_text(content)
        assert checked(folder) > 25
        assert checked(folder) == 0


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write everywhere; this is what the others see."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_cannot_be_written_opens(built: Path) -> None:
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent) / "index"
        shutil.copytree(built / "index", folder)
        expected = found(folder)
        (folder / VERIFIED).unlink()
        folder.chmod(0o555)
        with unprivileged():
            with pytest.raises(PermissionError):
                (folder / "new").touch()
            assert found(folder) == expected
            assert checked(folder) > 25, "there is no place to keep that it was checked"
        folder.chmod(0o755)
        flip(folder / "shards" / "00000" / "postings", 0)
        folder.chmod(0o555)
        with unprivileged(), pytest.raises(UserError, match="postings has changed"):
            open_folder(folder)
        folder.chmod(0o755)


def test_inspect_finds_what_size_and_time_do_not_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect([str(folder), "--verify"])
    assert "files have the checksums they were built with" in capsys.readouterr().out
    path = folder / "shards" / "00000" / "postings"
    status = path.stat()
    flip(path, status.st_size // 2)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(UserError, match=r"00000: .*postings has changed"):
        inspect([str(folder), "--verify"])
    with pytest.raises(UserError, match=r"00000: .*postings has changed"):
        open_folder(folder)


# ratchet search


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    path = write_config(folder.parent, index={"path": str(folder)})
    ratchet(["search", *arguments, "--config", str(path)])


def test_command_prints_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_index(tmp_path, DOCUMENTS[:2])
    folder = tmp_path / "index"
    run(folder, monkeypatch, "harbour of Velm")
    out = capsys.readouterr().out
    heads = [line.split() for line in out.splitlines() if "#" in line]
    assert [(rank, *rest) for rank, _, *rest in heads] == [("1", "d0#0", "Velm"), ("2", "d1#0")]
    assert "\x1b" not in out and "\x07" not in out, "a document must not steer the terminal"
    assert " ..." in out
