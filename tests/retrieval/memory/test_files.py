"""The evidence memory's folder: several processes at once, kills, damage."""

import contextlib
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ratchet.core.errors import UserError
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
    reader = opened(tmp_path, recalled=MANY, kept=MANY)
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
    fresh = opened(tmp_path, recalled=MANY, kept=MANY)
    for name, texts in acknowledged.items():
        assert len(texts) >= 25
        entities = [f"{name} {number}" for number in range(20)]
        assert set(texts) <= set(recalled(fresh, *entities))
        assert recalled(reader, *entities) == recalled(fresh, *entities)
    assert len(fresh.files.segments()) == 2


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
