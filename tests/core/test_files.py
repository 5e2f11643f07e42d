"""Files that survive kills: torn tails, second writers, full disks."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ratchet.core.errors import UserError
from ratchet.core.files import (
    Segment,
    read_json_file,
    read_jsonl,
    read_segment,
    write_atomic,
    write_json,
    write_jsonl,
)
from ratchet.core.records import Note, content_key
from ratchet.core.text import read_json


def note(i: int) -> Note:
    return Note(role="r", text=f"{i}" * 50, at=0.0)


def test_a_torn_tail_is_ignored_and_cut_back_before_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with Segment(path) as segment:
        segment.append(note(1))
        segment.append(note(2))
    with path.open("ab") as file:
        file.write(b'{"kind": "note", "te')
    assert list(read_segment(path, Note)) == [note(1), note(2)]
    with Segment(path) as segment:
        segment.append(note(3))
    assert list(read_segment(path, Note)) == [note(1), note(2), note(3)]


def test_damage_before_the_tail_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(note(1).model_dump_json() + "\n{broken}\n" + note(2).model_dump_json() + "\n")
    with pytest.raises(UserError, match=r"s\.jsonl:2"):
        list(read_segment(path, Note))


@pytest.mark.slow
def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with Segment(tmp_path / "s.jsonl"), pytest.raises(UserError, match="another process"):
        Segment(tmp_path / "s.jsonl")


WRITER = """
import sys
from pathlib import Path
from ratchet.core.files import Segment
from ratchet.core.records import Note
with Segment(Path(sys.argv[1])) as segment:
    for i in range(10**6):
        segment.append(Note(role="r", text=str(i), at=0.0))
        print(i, flush=True)
"""


@pytest.mark.slow
def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    for attempt in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process:
            first = "".join(process.stdout.readline() for _ in range(3))
            time.sleep(0.02 * (attempt + 1))
            process.send_signal(signal.SIGKILL)
            acknowledged = [int(x) for x in (first + process.stdout.read()).split()]
        runs = " ".join(n.text for n in read_segment(path, Note)).split("0 1 2", attempt + 1)
        last_run = ("0 1 2" + runs[-1]).split()
        assert acknowledged == [int(x) for x in last_run][: len(acknowledged)]
        assert len(runs) == attempt + 2, "an earlier run's records are gone"


def test_a_segment_that_was_moved_away_is_an_error_that_says_so(tmp_path: Path) -> None:
    with Segment(tmp_path / "run" / "s.jsonl") as segment:
        segment.append({"n": 1})
        (tmp_path / "run").rename(tmp_path / "away")
        with pytest.raises(UserError, match=r"run/s\.jsonl: was moved away .* move it back"):
            segment.append({"n": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["away"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_clear_message(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").symlink_to("/dev/full")
    segment = Segment(tmp_path / "s.jsonl")
    with pytest.raises(UserError, match=r"s\.jsonl: cannot write \(No space left on device\).*is kept"):
        segment.append(note(1))
    segment.close()


def test_an_atomic_write_leaves_the_old_file_when_it_cannot_finish(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, limits[1]))
    try:
        with pytest.raises(UserError, match="cannot write"):
            write_atomic(path, "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(("text", "message"), [("{}\n{nope\n", ":2: not valid JSON"), ("[1]\n", ":1: expected a")])
def test_a_bad_line_of_a_users_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.jsonl").write_text(text)
    with pytest.raises(UserError, match=message):
        list(read_jsonl(tmp_path / "d.jsonl"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.jsonl: cannot read"):
        list(read_jsonl(tmp_path / "nothing.jsonl"))


def test_half_a_surrogate_pair_is_written_as_a_question_mark(tmp_path: Path) -> None:
    half = Note(role="a", text="half \ud800 a pair", at=0.5)
    with Segment(tmp_path / "part-0.jsonl") as segment:
        segment.append(half)
        segment.append({"role": "\udfff"})
    write_jsonl(tmp_path / "all.jsonl", [half])
    write_json(tmp_path / "one.json", {"text": "\ud800"})
    first, second = (tmp_path / "part-0.jsonl").read_bytes().splitlines()
    assert Note.model_validate_json(first).text == "half ? a pair" and json.loads(second) == {"role": "?"}
    assert next(read_segment(tmp_path / "all.jsonl", Note)).text == "half ? a pair"
    assert json.loads((tmp_path / "one.json").read_bytes()) == {"text": "?"}
    assert content_key("half \ud800") == content_key("half ?")


def test_json_from_outside_is_whole_or_a_value_error() -> None:
    assert read_json(b'{"\\ud800": ["\\udfff a", 1, null]}') == {"?": ["? a", 1, None]}
    assert read_json("[" * 99 + "]" * 99)
    for bad in ("[" * 101 + "]" * 101, "[" * 100_000, "9" * 5_000, b'"\xff"', "", '{"a"'):
        with pytest.raises(ValueError):  # noqa: PT011  each has a message of its own
            read_json(bad)


@pytest.mark.parametrize("damaged", [b"[" * 100_000, b'{"a": \xe5}', b"", b"[1"])
def test_a_damaged_json_file_is_a_value_error_however_it_is_damaged(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "file.json").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"\S"):
        read_json_file(tmp_path / "file.json")
