"""What a writer writes once its lease is another's: nothing more."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from ratchet.core import lease
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, new_file, new_folder, read_segment, write_atomic, write_json
from ratchet.core.lease import STALE_SECONDS, Lease
from ratchet.core.records import Note
from ratchet.index_build.writing import building_folder
from tests.helpers.leases import rewrite


@pytest.mark.parametrize("released", [False, True])
def test_a_segment_writes_nothing_more_once_another_had_its_lease(tmp_path: Path, released: bool) -> None:
    path = tmp_path / "s.jsonl"
    with Segment(path) as segment:
        segment.append(Note(role="r", text="mine", at=0.0))
        if released:
            (tmp_path / ".s.jsonl.lease").unlink()
        else:
            rewrite(tmp_path / ".s.jsonl.lease", token="other", host="node7")
        segment._lease._renewed_at -= STALE_SECONDS  # as after a long pause: looked at before the write, not after
        with pytest.raises(UserError, match="paused for too long"):
            segment.append(Note(role="r", text="too late", at=0.0))
    assert [note.text for note in read_segment(path, Note)] == ["mine"]


def test_nothing_gets_its_name_once_the_lease_is_anothers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat, which would end this process, is left out: a process that goes on may write before its first."""
    one = Lease(tmp_path / ".lease", "it")
    monkeypatch.setattr(lease._heartbeat, "add", lambda _: None)
    with one:
        rewrite(one.path, token="other", host="node7", machine="node7")
        one._renewed_at -= STALE_SECONDS
        monkeypatch.setattr(lease._heartbeat, "held", [one])
        with pytest.raises(UserError, match="paused for too long"):
            write_atomic(tmp_path / "file", "text")
        for new in (new_file, new_folder, building_folder):
            with pytest.raises(UserError, match="paused for too long"), new(tmp_path / "made") as made:
                made.mkdir(exist_ok=True)
    assert [path.name for path in tmp_path.iterdir()] == [".lease"]


def test_a_writer_whose_folder_another_one_finished_says_so(tmp_path: Path) -> None:
    """It was suspended, and the lease of the other one is free again."""
    target = tmp_path / "shard"
    with pytest.raises(UserError, match=f"{target}: is there already"), new_folder(target), new_folder(target) as other:
        write_json(other / "whole", 1)
    with pytest.raises(UserError, match=f"{target}: is there already"), new_folder(target):
        raise AssertionError("it was not refused at once")
    assert [path.name for path in tmp_path.rglob("*")] == ["shard", "whole"]


def test_what_is_left_of_a_folder_that_another_writer_deleted_gets_no_name(tmp_path: Path) -> None:
    target = tmp_path / "shard"

    def write() -> None:
        with new_folder(target) as folder:
            write_json(folder / "first", 1)
            with contextlib.suppress(KeyboardInterrupt), new_folder(target):
                raise KeyboardInterrupt
            write_json(folder / "second", 2)

    with pytest.raises(UserError, match="was moved away or deleted"):
        write()
    assert not list(tmp_path.iterdir())


def test_a_file_that_another_process_wrote_while_this_one_was_suspended(tmp_path: Path) -> None:
    """The other one had the lease of the folder, and deleted what it took for a killed writer's."""
    target = tmp_path / "plan.json"

    def write() -> None:
        with new_file(target) as hidden:
            hidden.write_text("mine")
            with new_file(target) as other:
                other.write_text("other")

    with pytest.raises(UserError, match=f"{target}: is there already"):
        write()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["other"]
