"""What `ratchet status` says of a run."""

from pathlib import Path

import yaml

from ratchet.core.files import write_record
from ratchet.core.runfolder import RoundFolder
from ratchet.evaluation.arms import RoundArms, arms_file
from ratchet.rounds.records import Entry
from ratchet.rounds.stages import ExperimentRun
from ratchet.rounds.status import stage_progress, summarize_entry
from ratchet.rounds.trace import trace_lines
from ratchet.sampling.store import FIRST_SEGMENT
from tests.helpers.planned_run import experiment, plan, selected
from tests.helpers.reward_cases import trajectory
from tests.helpers.stored import store


def done(**facts: object) -> str:
    entry = Entry(
        round=1, stage="train", member="", inputs={}, outputs={}, facts=facts,
        began="2026-03-01T10:00:00+00:00", seconds=1.0, machine="m",
    )  # fmt: skip
    return summarize_entry(entry)


def test_a_count_of_one_is_a_number() -> None:
    assert done(kept=1, rows=0, promoted=True).startswith("kept 1, rows 0, promoted yes (")
    assert done(kept=2, promoted=False, dev_loss=0.5).startswith("kept 2, promoted no, dev loss 0.500 (")


def test_sentences_are_left_out_of_the_line_and_names_are_not() -> None:
    shown = done(measure="f1", verdict="Better.", reason="No.")
    assert "measure f1" in shown and "verdict" not in shown and "reason" not in shown


def test_the_progress_of_a_members_sampling_is_of_the_member(tmp_path: Path) -> None:
    member = experiment(tmp_path, sampling={"samples": 3}).config
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(member.model_dump(mode="json")))
    values = member.model_dump(mode="json") | {
        "run": str(tmp_path / "shared"),
        "members": {"m": str(tmp_path / "m.yaml")},
    }
    shared = ExperimentRun(type(member).model_validate(values), ("--config", "c.yaml"))
    [sample] = [stage for stage in plan(shared) if stage.id == "sample"]
    assert (sample.member, sample.title) == ("m", "m: sample")
    assert stage_progress(shared, sample) == ""
    made = store(tmp_path / "run" / "round-1" / "trajectories", (), missing=3)
    (made.folder / FIRST_SEGMENT).write_text("{}\n{}\n")
    assert stage_progress(shared, sample) == "2 of 3 trajectories"


def test_an_interrupted_scoring_says_how_many_of_all_scores(tmp_path: Path) -> None:
    one = experiment(tmp_path, rewards={"weights": {"em": 1.0, "f1": 1.0}})
    [score] = [stage for stage in plan(one) if stage.id == "score"]
    folder = one.run.round(1)
    store(folder.trajectories, (), missing=16)
    assert stage_progress(one, score) == ""
    folder.scores.mkdir()
    (folder.scores / "em-1.jsonl").write_text("{}\n" * 16)
    (folder.scores / "f1-1.jsonl").write_text("{}\n")
    assert stage_progress(one, score) == "17 of 32 scores"
    (folder.scores / "f1-2.jsonl").write_text("{}\n" * 16)
    assert stage_progress(one, score) == "33 scores so far", "some are of other settings"


def test_an_interrupted_evaluation_says_how_many_of_all_trajectories(tmp_path: Path) -> None:
    one = experiment(tmp_path)
    [evaluate] = [stage for stage in plan(one) if stage.id == "evaluate"]
    folder, run = one.run.round(1), one.run.path
    for name, count in (("base", 20), ("trained", 12)):
        store(run / "arms" / name, (), missing=count)
    (run / "arms" / "base" / FIRST_SEGMENT).write_text("{}\n" * 17)
    write_record(arms_file(folder, "test"), RoundArms(arms={"base": "arms/base", "trained": "arms/trained"}))
    assert stage_progress(one, evaluate) == "17 of 32 trajectories"


def test_scores_of_which_nothing_was_kept_say_so(tmp_path: Path) -> None:
    run = experiment(tmp_path)
    [score] = [stage for stage in plan(run) if stage.id == "score"]
    folder = run.run.round(1)
    store(folder.trajectories, [trajectory(0)])
    folder.scores.mkdir()
    (folder.scores / FIRST_SEGMENT).write_text("{}\n")
    assert stage_progress(run, score).startswith("1 of 1 scores") and "kept" not in stage_progress(run, score)
    selected(run.run, 1, ())
    assert stage_progress(run, score) == "1 of 1 scores; none was kept"


def test_a_trace_says_why_a_trajectory_has_no_answer(tmp_path: Path) -> None:
    error = "agent: cut off (length)\nafter 32 tokens"
    cut = trajectory(0, "a", status="unparsed").model_copy(update={"error": error})
    made = store(tmp_path / "run" / "round-1" / "trajectories", [cut])
    [line, _] = trace_lines(RoundFolder(made.folder.parent), cut.question_id)
    assert "unparsed (agent: cut off (length) after 32 tokens) 'a'" in line
