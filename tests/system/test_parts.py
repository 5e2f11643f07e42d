"""One round's questions shared by several commands: every trajectory counts once, whoever sampled it and how often."""

import shutil
from pathlib import Path

import pytest

from ratchet.core.config import load_config
from ratchet.core.files import read_segments, write_jsonl
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.report.view import section_view
from tests.helpers.experiment import Done, command, make_experiment
from tests.helpers.reported import gathered
from tests.helpers.world import prepared_rows

QUESTIONS, SAMPLES = 8, 4


class Lab:
    """An experiment whose index is built, and its commands."""

    def __init__(self, folder: Path) -> None:
        self.config = make_experiment(folder, QUESTIONS)
        self.run("index")

    def run(self, name: str, *words: str, run: str = "run") -> Done:
        """`ratchet NAME WORDS`, in the run folder of this name."""
        place = f"run={self.config.parent / run}"
        return command("-m", "ratchet", name, "--config", str(self.config), "--set", place, *words)

    def round(self, run: str = "run") -> RoundFolder:
        return RunFolder(self.config.parent / run).round(1)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def on_disk(path: Path) -> list[Trajectory]:
    return list(read_segments(path, Trajectory))


def answers(folder: Path) -> dict[str, tuple[str, str]]:
    return {t.key: (t.status, t.answer) for t in on_disk(folder)}


def test_parts_together_are_the_whole_and_each_samples_only_its_own(lab: Lab) -> None:
    parts = lab.round().trajectories
    counts = []
    for part in (2, 0, 1):
        status, said = lab.run("sample", "--part", f"{part}/3")
        assert status == 0, said
        counts.append(len(on_disk(parts)))
    assert counts == [2 * SAMPLES, 5 * SAMPLES, 8 * SAMPLES]
    assert len(list(parts.glob("*.jsonl"))) == 3
    assert len(answers(parts)) == QUESTIONS * SAMPLES

    assert lab.run("sample")[0] == 0
    assert len(on_disk(parts)) == QUESTIONS * SAMPLES, "what others sampled is sampled again"
    (parts / "part-1-of-3.jsonl").unlink()
    assert lab.run("sample", "--part", "0/2")[0] == lab.run("sample")[0] == 0
    assert len(on_disk(parts)) == QUESTIONS * SAMPLES

    assert lab.run("sample", run="whole")[0] == 0
    assert answers(lab.round("whole").trajectories) == answers(parts)


@pytest.mark.parametrize("part", ["3/3", "x/3", "1", "-1/3", "0/0"])
def test_a_part_that_is_none_is_refused(lab: Lab, part: str) -> None:
    status, said = lab.run("sample", f"--part={part}")
    assert status == 2 and f"argument --part: {part!r}: expected K/N" in said


def test_what_was_sampled_twice_counts_once_everywhere(lab: Lab) -> None:
    assert lab.run("sample")[0] == 0
    twice = lab.round("twice").trajectories
    shutil.copytree(lab.round().trajectories, twice)
    found = on_disk(twice)
    # Another writer's copies, as an engine that never says the same twice would make them, and one that it lost.
    copies = [t.model_copy(update={"answer": "another", "conversations": ()}) for t in found[1:]]
    lost = found[0].model_copy(update={"status": "failed", "error": "the server went away"})
    write_jsonl(twice / "part-9-of-9.jsonl", copies)
    write_jsonl(twice / "part--1.jsonl", [lost])  # read before the try that went well

    for run in ("run", "twice"):
        status, said = lab.run("score", run=run)
        assert status == 0, said
    once, again = lab.round(), lab.round("twice")
    assert again.selection.read_text() == once.selection.read_text()
    for path in once.scores.glob("*.jsonl"):
        assert sorted((again.scores / path.name).read_text().split("\n")) == sorted(path.read_text().split("\n"))

    config = load_config(str(lab.config))
    rows = [prepared_rows(config, folder)[0] for folder in (once, again)]
    assert rows[0].digest == rows[1].digest
    pages = [gathered(config, folder) for folder in (once, again)]
    assert pages[0].sampled is not None and pages[1].sampled is not None
    assert section_view(pages[0].sampled) == section_view(pages[1].sampled)


def test_scores_and_selection_are_of_what_the_round_was_last_sampled_for(lab: Lab) -> None:
    assert lab.run("sample")[0] == 0
    folder = lab.round().trajectories
    older = [t.model_copy(update={"key": f"old{i}"}) for i, t in enumerate(on_disk(folder))]
    write_jsonl(folder / "older.jsonl", older)
    assert lab.run("score", "--anyway")[0] == 0
    scored = "".join(path.read_text() for path in lab.round().scores.glob("*.jsonl"))
    assert older[3].key not in scored
    assert older[3].key not in lab.round().selection.read_text()

    for path in folder.glob("part*.jsonl"):
        path.unlink()
    status, said = lab.run("score", "--anyway")
    assert status == 2 and "no planned trajectory is sampled yet" in said
