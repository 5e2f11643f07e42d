"""What a writer writes once its lease is another's: nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from index_build.writing import building_folder
from ratchet import lease
from ratchet.errors import UserError
from ratchet.files import Segment, hidden_beside, read_segment, write_atomic
from ratchet.lease import STALE_SECONDS, Lease
from ratchet.records import Note
from tests.helpers.leases import rewrite
from training.checkpoints import publish_folder


def test_a_segment_writes_nothing_more_once_its_lease_is_anothers(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with Segment(path) as segment:
        segment.append(Note(role="r", text="mine", at=0.0))
        rewrite(tmp_path / ".s.jsonl.lease", token="other", host="node7")
        segment._lease._renewed_at -= STALE_SECONDS  # as after a long pause: looked at before the write, not after
        with pytest.raises(UserError, match="paused for too long"):
            segment.append(Note(role="r", text="too late", at=0.0))
    assert [note.text for note in read_segment(path, Note)] == ["mine"]


def test_nothing_gets_its_name_once_the_lease_is_anothers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat, which would end this process, is left out: a process that goes on may write before its first."""
    one, made = Lease(tmp_path / ".lease", "it"), tmp_path / "made"
    made.mkdir()
    monkeypatch.setattr(lease._heartbeat, "add", lambda _: None)
    with one:
        rewrite(one.path, token="other", host="node7", machine="node7")
        one._renewed_at -= STALE_SECONDS
        monkeypatch.setattr(lease._heartbeat, "held", [one])
        with pytest.raises(UserError, match="paused for too long"):
            write_atomic(tmp_path / "file", "text")
        with pytest.raises(UserError, match="paused for too long"):
            publish_folder(made, tmp_path / "folder")
        with pytest.raises(UserError, match="paused for too long"), building_folder(tmp_path / "shard"):
            pass
    assert {path.name for path in tmp_path.iterdir()} == {".lease", "made"}


def test_two_writers_of_one_folder_have_hidden_folders_of_their_own(tmp_path: Path) -> None:
    first = hidden_beside(tmp_path / "shard")
    first.mkdir()
    second = hidden_beside(tmp_path / "shard")
    assert first != second and not first.exists()
