"""The evidence memory's folder: several processes at once, kills, damage, rewriting."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ratchet.errors import UserError
from retrieval.memory.memory import Memory
from tests.helpers.remembering import leave, opened, recalled

MANY = 100_000


def write_until_killed(folder: str, name: str, told: Connection) -> None:
    memory = opened(Path(folder))
    for number in range(MANY):
        text = f"{name} {number}"
        leave(memory, f"{name} {number % 20}", text, question=text)
        told.send(text)


@pytest.mark.slow
def test_two_writers_that_are_killed_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    reader = opened(tmp_path, most=MANY, per_entity=MANY)
    told = []
    for name in ("one", "two"):
        ours, theirs = spawn.Pipe(duplex=False)
        process = spawn.Process(target=write_until_killed, args=(str(tmp_path), name, theirs))
        process.start()
        theirs.close()
        told.append((name, process, ours))
    acknowledged: dict[str, list[str]] = {"one": [], "two": []}
    for _ in range(25):  # both are at it
        for name, _, ours in told:
            acknowledged[name].append(ours.recv())
        recalled(reader, "one 3", "two 3")
    for name, process, ours in told:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with contextlib.suppress(EOFError):
            while True:
                acknowledged[name].append(ours.recv())
    fresh = opened(tmp_path, most=MANY, per_entity=MANY)
    for name, texts in acknowledged.items():
        assert len(texts) >= 25
        entities = [f"{name} {number}" for number in range(20)]
        assert set(texts) <= set(recalled(fresh, *entities))
        assert recalled(reader, *entities) == recalled(fresh, *entities)
    assert len(fresh.files.segments()) == 2
    before = recalled(fresh, "one 3")
    fresh.compact()  # the killed hold no lease
    assert len(fresh.files.segments()) == 1 and recalled(fresh, "one 3") == before == recalled(reader, "one 3")


def test_a_line_counts_when_it_is_whole(tmp_path: Path) -> None:
    leave(opened(tmp_path / "elsewhere"), "Velm", "a fact", "another")
    [segment] = (tmp_path / "elsewhere").glob("*.jsonl")
    first, second = segment.read_bytes().splitlines(keepends=True)
    memory, copy = opened(tmp_path), tmp_path / "of-another.jsonl"
    copy.write_bytes(first + second[:40])
    assert recalled(memory, "Velm") == recalled(opened(tmp_path), "Velm") == ["a fact"]
    leave(memory, "Velm", "a third", question="q3")
    with copy.open("ab") as file:
        file.write(second[40:])
    assert recalled(memory, "Velm") == recalled(opened(tmp_path), "Velm") == ["a third", "a fact", "another"]


def test_a_damaged_line_is_named_and_what_was_read_before_it_is_not_lost(tmp_path: Path) -> None:
    memory = opened(tmp_path)
    recalled(memory, "Velm")
    leave(opened(tmp_path), "Velm", "a fact")
    bad = tmp_path / "zzz.jsonl"
    bad.write_text('{"scope": 1}\n')
    with pytest.raises(UserError, match=r"zzz\.jsonl:1: .*restore it, or delete this line"):
        recalled(memory, "Velm")
    bad.unlink()
    assert recalled(memory, "Velm") == ["a fact"]


@pytest.mark.parametrize("how", ["shorter", "gone", "another"])
def test_a_segment_that_is_not_the_one_that_was_read_is_read_anew(how: str, tmp_path: Path) -> None:
    writer, memory = opened(tmp_path), opened(tmp_path)
    leave(writer, "Velm", "a fact", "another")
    leave(memory, "Velm", "a third", question="q3")
    assert len(recalled(memory, "Velm")) == 3
    [segment] = [path for path in memory.files.segments() if path.stem == writer.files.writer]
    first, second = segment.read_bytes().splitlines(keepends=True)
    if how == "shorter":
        segment.write_bytes(first)
    elif how == "gone":
        segment.unlink()
    else:
        (tmp_path / "new").write_bytes(second + first.replace(b"a fact", b"a fiction"))
        (tmp_path / "new").replace(segment)
    left = {"shorter": ["a fact"], "gone": [], "another": ["a fiction", "another"]}[how]
    assert recalled(memory, "Velm") == ["a third", *left]


def test_compacting_drops_what_the_limits_leave_out_and_readers_go_on(tmp_path: Path) -> None:
    for number in range(6):
        memory = opened(tmp_path, per_entity=2)
        leave(memory, "Velm", f"fact {number}", question=f"q{number}")
        memory.close()
    reader = opened(tmp_path, per_entity=2)
    assert recalled(reader, "Velm") == ["fact 5", "fact 4"]
    (tmp_path / "zzz.jsonl").write_bytes(b'{"torn')
    assert opened(tmp_path, per_entity=2).compact() > 0
    assert len(reader.files.segments()) == 1
    assert recalled(reader, "Velm") == recalled(opened(tmp_path), "Velm") == ["fact 5", "fact 4"]
    assert recalled(reader, "Velm", question="q5") == ["fact 4"]
    leave(reader, "Velm", "fact 6", question="q6")
    assert recalled(opened(tmp_path), "Velm") == ["fact 6", "fact 5", "fact 4"]


def test_nothing_is_rewritten_while_somebody_writes(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    leave(writer, "Velm", "a fact")
    with pytest.raises(UserError, match="a job is writing this memory"):
        opened(tmp_path).compact()
    writer.close()
    opened(tmp_path).compact()
    leave(writer, "Velm", "another", question="q2")
    assert recalled(opened(tmp_path), "Velm") == ["another", "a fact"]


def test_a_writer_that_starts_during_a_rewriting_loses_nothing_and_a_second_rewriting_is_refused(
    tmp_path: Path,
) -> None:
    first, late = opened(tmp_path), opened(tmp_path)
    leave(first, "Velm", "a fact")
    first.close()
    with first.files.rewriting() as segments:
        leave(late, "Velm", "another", question="q2")
        with pytest.raises(UserError, match="another process is writing the memory"):
            opened(tmp_path).compact()
        first.files.replace(segments, list(first.pieces().kept(set())))
    leave(late, "Velm", "a third", question="q3")
    assert recalled(opened(tmp_path), "Velm") == ["a third", "another", "a fact"]


def test_a_writer_that_was_taken_for_ended_writes_on_in_a_new_segment(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    leave(writer, "Velm", "a fact")
    for segment in writer.files.segments():
        segment.unlink()
    leave(writer, "Velm", "another", question="q2")
    assert recalled(opened(tmp_path), "Velm") == ["another"]


def test_a_rewriting_that_was_killed_half_way_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = opened(tmp_path)
    leave(memory, "Velm", "a fact", "another")
    memory.close()
    unlink = Path.unlink

    def stop_at_segments(path: Path, **options: bool) -> None:
        if path.suffix == ".jsonl":
            raise KeyboardInterrupt
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stop_at_segments)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path).compact()
    assert len(memory.files.segments()) == 2
    assert recalled(opened(tmp_path), "Velm") == ["a fact", "another"]
    opened(tmp_path).compact()
    assert len(memory.files.segments()) == 1
    assert recalled(opened(tmp_path), "Velm") == recalled(memory, "Velm") == ["a fact", "another"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/\.\S+\.jsonl\.lease: cannot write"):
        leave(opened(tmp_path / "file"), "Velm", "a fact")


def test_compacting_an_empty_memory(tmp_path: Path) -> None:
    memory: Memory = opened(tmp_path / "none")
    assert memory.compact() == 0 and not (tmp_path / "none").exists()
