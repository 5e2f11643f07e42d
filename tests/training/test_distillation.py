"""Agents' answers as training rows of a system that answers in one call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RoundFolder
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.rows import build_rows, check_rows
from tests.helpers.experiment import Done, command, make_experiment
from tests.helpers.tiny import tiny_format


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of agents whose round is sampled and selected."""
    path = make_experiment(tmp_path_factory.mktemp("agents"))
    for words in (("index",), ("sample",), ("score",)):
        assert command("-m", "ratchet", *words, "--config", str(path)).returncode == 0
    return path


def student(agents: Path, folder: Path, **changes: object) -> Path:
    """A config of vanilla RAG with a run folder of its own."""
    settings = yaml.safe_load(agents.read_text())
    settings |= {
        "run": str(folder / "run"),
        "system": {"name": "vanilla_rag", "settings": {"style": "brief"}},
        **changes,
    }
    path = folder / "student.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def distill(student: Path, agents: Path) -> Done:
    return command("-m", "ratchet", "distill", "--config", str(student), "--from", str(agents))


def kept(folder: RoundFolder) -> list[Trajectory]:
    selection = folder.read_selection()
    assert selection is not None
    return list(TrajectoryStore(folder.trajectories).read(selection.kept))


def test_the_students_prompt_has_the_agents_documents_and_its_label_is_their_answer(
    agents: Path, tmp_path: Path
) -> None:
    path = student(agents, tmp_path)
    assert "ratchet train" in distill(path, agents).stdout
    taught, learnt = (kept(RoundFolder(folder / "run/round-1")) for folder in (agents.parent, tmp_path))
    answers = {(one.question_id, one.answer, one.passages) for one in taught if one.passages}
    assert {(one.question_id, one.answer, one.passages) for one in learnt} == answers and len(learnt) == len(answers)
    rows, skipped = build_rows(learnt, [one.key for one in learnt], 10_000)
    assert not skipped and check_rows(rows, {one.key: one for one in learnt}) == len(learnt)
    for row, one in zip(rows, learnt, strict=True):
        label = [i for i, is_learnt in zip(row.ids, row.loss_mask, strict=True) if is_learnt]
        assert json.loads(tiny_format().decode(label).removesuffix("<|im_end|>")) == {"answer": one.answer}
        assert one.passages and all(passage.text in tiny_format().decode(row.ids) for passage in one.passages)
    assert {(one.system, one.policy) for one in learnt} == {("vanilla_rag", "distilled")}


def test_a_distillation_that_was_stopped_before_its_selection_is_finished_by_the_same_command(
    agents: Path, tmp_path: Path
) -> None:
    path, selection = student(agents, tmp_path), tmp_path / "run/round-1/selection.json"
    assert distill(path, agents).returncode == 0
    written = selection.read_bytes()
    selection.unlink()
    done = distill(path, agents)
    assert done.returncode == 0 and selection.read_bytes() == written, done.stdout


@pytest.mark.slow
def test_what_was_distilled_is_trained_evaluated_and_reported_by_the_usual_commands(
    agents: Path, tmp_path: Path
) -> None:
    path = student(agents, tmp_path)
    for _ in range(2):  # the second time it has nothing to do
        assert distill(path, agents).returncode == 0
    for words in (("train.py",), ("-m", "ratchet", "evaluate"), ("-m", "ratchet", "report")):
        done = command(*words, "--config", str(path))
        assert done.returncode == 0, done.stdout
    assert (tmp_path / "run/report.html").exists()
    again = command("-m", "ratchet", "distill", "--config", str(path), "--from", str(path))
    assert again.returncode == 2 and "distill into a run folder of its own" in again.stdout
    sampled = command("-m", "ratchet", "sample", "--config", str(path))
    assert sampled.returncode == 2 and "holds what `ratchet distill` wrote" in sampled.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system": {"name": "tool_mad"}}, "does not say which action gives the right answer"),
        ({"system": {"name": "mrag"}}, "a student is a system of one call"),
        ({"system": {"name": "vanilla_rag", "roles": {"default": {"max_tokens": 1}}}}, "with max_tokens"),
        ({"questions": "dev"}, "give both configs the same questions.train"),
    ],
    ids=["no answer", "several calls", "no room", "other questions"],
)
def test_a_student_that_cannot_learn_the_answers_is_refused(
    agents: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    if "questions" in changes:
        splits = yaml.safe_load(agents.read_text())["questions"]
        changes = {"questions": {**splits, "train": splits["dev"], "dev": splits["train"]}}
    done = distill(student(agents, tmp_path, **changes), agents)
    assert done.returncode == 2 and message in done.stdout, done.stdout
    assert not list(tmp_path.rglob("selection.json"))
