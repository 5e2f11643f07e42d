"""What is done is skipped, and what changed is noticed."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.commands.recording import collect_facts, record_stage
from ratchet.core.files import count_lines
from ratchet.core.runfolder import RunFolder
from ratchet.rounds.artefacts import Digests, File, FixedDigest, Segments
from ratchet.rounds.ledger import digests_of, earlier_test_rounds, latest_entries, read_ledger, reason_to_run
from ratchet.rounds.records import StageId
from ratchet.rounds.stages import Stage
from tests.helpers.handmade_run import add_evaluation, make_run

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = tmp_path / "run" / "round-1" / "trajectories"
    folder.mkdir(parents=True)
    (folder / "part-0.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "run" / "questions.txt").write_text("who?")
    return RunFolder(tmp_path / "run")


def stage(run: RunFolder, config: str = "c") -> Stage:
    return Stage(
        1,
        "sample",
        ("true",),
        {"questions": File(run.path / "questions.txt"), "config": FixedDigest(config)},
        {"trajectories": Segments(run.round(1).trajectories)},
    )


def done(run: RunFolder, one: Stage) -> None:
    digests = Digests(run)
    record_stage(run, one, digests_of(one.reads, digests), NOW, 1.0, digests)


def reason(run: RunFolder, one: Stage) -> str | None:
    due = reason_to_run(one, latest_entries(run), Digests(run))
    return due.reason if due else None


def test_a_stage_is_done_when_its_entry_holds(run: RunFolder) -> None:
    one = stage(run)
    assert reason(run, one) == "not done yet"
    done(run, one)
    assert reason(run, one) is None
    [entry] = read_ledger(run)
    assert (entry.round, entry.stage, entry.facts) == (1, "sample", {"trajectories": 2})
    assert entry.began == "2026-01-02T03:04:05+00:00" and set(entry.outputs) == {"trajectories"}


def test_a_second_look_at_the_test_questions_is_noticed(run: RunFolder) -> None:
    def test(number: int, questions: str, id: StageId = "test") -> Stage:
        return Stage(number, id, (), {"questions": FixedDigest(questions)}, {"evaluation": FixedDigest("e")})

    def looks(one: Stage) -> list[int]:
        return earlier_test_rounds(one, digests_of(one.reads, Digests(run)), latest_entries(run))

    done(run, test(1, "q"))
    done(run, test(1, "q", "promote"))
    assert looks(test(3, "q")) == looks(test(3, "q", "test.sample")) == [1]
    assert looks(test(1, "q")) == looks(test(3, "fresh")) == looks(test(3, "q", "promote")) == []


@pytest.mark.slow
def test_an_evaluation_records_the_questions_that_it_gained_and_broke(tmp_path: Path) -> None:
    config, folder = make_run(tmp_path, train=4, test=30)

    def facts() -> dict[str, Any]:
        return collect_facts({"evaluation": File(folder.evaluation / "results.json")})

    assert (found := facts())["gained"] > found["broken"] >= 0 and "base_again_gained" not in found
    arms = (("base", "base", 0.3), ("adapter", "0f3a91c4", 0.9), ("base again", "base-seed+1", 0.3))
    results = add_evaluation(config, folder, "test", arms)
    again = results.changes("base again")
    assert again is not None and (again.gained, again.broken) != (0, 0)
    assert (facts()["base_again_gained"], facts()["base_again_broken"]) == (again.gained, again.broken)
    assert facts()["base again"] == results.arms[2].measures["f1"].mean


def test_changed_inputs_and_outputs_are_named(run: RunFolder) -> None:
    done(run, stage(run))
    assert reason(run, stage(run, config="other")) == "its input changed: config"
    part = run.round(1).trajectories / "part-0.jsonl"
    before = part.read_text()
    part.write_text('{"a": 1}\n')
    assert reason(run, stage(run)) == "trajectories changed since it was done"
    part.unlink()
    assert reason(run, stage(run)) == "trajectories changed since it was done"
    part.write_text(before)
    assert reason(run, stage(run)) is None, "the same content again is the same"
    (run.path / "questions.txt").write_text("whose?")
    assert reason(run, stage(run)) == "its input changed: questions"


def test_the_last_entry_of_a_stage_counts(run: RunFolder) -> None:
    done(run, stage(run))
    done(run, stage(run, config="other"))
    assert reason(run, stage(run, config="other")) is None
    assert reason(run, stage(run)) == "its input changed: config"
    assert len(read_ledger(run)) == 2


def test_what_leaves_nothing_is_run_for_what_it_shows(run: RunFolder) -> None:
    one = Stage(1, "compare", ("true",), {}, {})
    done(run, one)
    assert reason(run, one) == "not done yet"


def test_a_torn_last_line_is_a_stage_that_is_not_done(run: RunFolder) -> None:
    done(run, stage(run))
    with run.ledger.open("a") as file:
        file.write('{"round": 1, "stage": "tra')
    assert len(read_ledger(run)) == 1
    done(run, stage(run, config="other"))
    assert [json.loads(line)["stage"] for line in run.ledger.read_text().splitlines()] == ["sample", "sample"]


def test_lines_do_not_depend_on_where_the_run_lies(run: RunFolder, tmp_path: Path) -> None:
    before = Segments(run.round(1).trajectories).digest(Digests(run))
    moved = RunFolder(run.path.rename(tmp_path / "elsewhere"))
    assert Segments(moved.round(1).trajectories).digest(Digests(moved)) == before is not None
    assert count_lines(Segments(moved.round(1).trajectories).files()) == 2


@pytest.mark.parametrize("content", [b"7", b"[]", b'{"a": 5}', b'{"a": [1]}', b"{", b"\xff", b"[" * 5000], ids=repr)
def test_a_garbled_file_of_digests_is_rebuilt(tmp_path: Path, content: bytes) -> None:
    run, file = RunFolder(tmp_path), tmp_path / "file"
    file.write_text("text")
    before = Digests(run)
    digest = before.file(file)
    before.save()
    assert Digests(run).file(file) == digest
    before.path.write_bytes(content)
    assert Digests(run).file(file) == digest


def test_the_digest_of_an_adapter_is_remembered_until_one_of_its_files_changes(tmp_path: Path) -> None:
    config, weights = tmp_path / "adapter_config.json", tmp_path / "adapter_model.safetensors"
    config.write_text('{"r": 8}')
    weights.write_bytes(b"old")
    first = Digests(RunFolder(tmp_path))
    digest = first.adapter(tmp_path)
    first.save()
    times = weights.stat().st_atime_ns, weights.stat().st_mtime_ns
    weights.write_bytes(b"new")
    os.utime(weights, ns=times)  # only who reads it sees the change
    assert Digests(RunFolder(tmp_path)).adapter(tmp_path) == digest
    config.write_text('{"r": 16}')
    assert Digests(RunFolder(tmp_path)).adapter(tmp_path) != digest
