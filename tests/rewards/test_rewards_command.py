"""`ratchet score` and `ratchet score whatif`, from the command line's words to files and exit status."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from ratchet.commands.main import run_command
from ratchet.core.records import Question, Selection, Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.inference.engine import EngineError
from ratchet.rewards import scoring
from tests.helpers.commands import command_of
from tests.helpers.reward_cases import make_config, scripted_judge, trajectory
from tests.helpers.stored import store

main = command_of("score")

QUESTIONS = [
    Question(id="q1", text="Who built it?", answers=("Ada Torrin",), nuggets=("Ada Torrin", "engineer")),
    Question(id="q2", text="When?", answers=("1204",), nuggets=("1204",)),
]
ANSWERS = {"q1": ["Ada Torrin", "the engineer Ada Torrin"], "q2": ["1300", "it was 1250"]}
TRAJECTORIES = [
    trajectory(sample, answer=answer, question=question, documents=["Ada Torrin, engineer, 1204"], sampled=(sample,))
    for question, answers in ANSWERS.items()
    for sample, answer in enumerate(answers)
]


class Experiment:
    """A run folder with sampled trajectories, and its config as a file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._patch, self._capsys = folder, monkeypatch, capsys
        self.config = folder / "config.yaml"
        self.round = RunFolder(folder / "run").round(1)

    def prepare(
        self,
        trajectories: list[Trajectory] = TRAJECTORIES,
        models: Mapping[str, object] | None = None,
        **rewards: object,
    ) -> None:
        config = make_config(self.folder, QUESTIONS, rewards=rewards, **({"models": models} if models else {}))
        self.config.write_text(yaml.safe_dump(config.model_dump(mode="json")))
        if trajectories:
            store(self.round.trajectories, trajectories, QUESTIONS, missing=len(TRAJECTORIES) - len(trajectories))

    def __call__(self, *words: str) -> tuple[int, str]:
        """(exit status, everything printed) of `ratchet score WORDS --config ...`."""
        self._patch.setattr(sys, "argv", ["rewards", *words, "--config", str(self.config)])
        self._patch.setenv("COLUMNS", "200")
        status = 0
        try:
            run_command(main)
        except SystemExit as end:
            status = int(str(end.code))
        said = self._capsys.readouterr()
        return status, said.out + said.err

    def selection(self) -> Selection:
        return Selection.model_validate_json(self.round.selection.read_text())

    def files(self) -> dict[str, tuple[bytes, int]]:
        return {
            str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in self.folder.rglob("*") if path.is_file()
        }


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Experiment:
    return Experiment(tmp_path, monkeypatch, capsys)


def test_scores_are_made_and_the_best_selected(experiment: Experiment) -> None:
    experiment.prepare(weights={"f1": 1})
    status, said = experiment()
    assert status == 0
    selection = experiment.selection()
    assert selection.kept == (TRAJECTORIES[0].key,)
    assert [choice.reason for choice in selection.questions] == [
        "kept 1 of 2: best at 1.000",
        "dropped: best reward is not above 0.0 (best 0.000 of 2)",
    ]
    assert selection.weights == {"f1": 1.0}
    assert "questions kept 1 of 2 (1 keep 1), 1 with a reward of at least 0.5, dropped 1: best reward is" in said
    assert "free: 4 sampled, 2 above 0, 1 kept" in said
    before = experiment.round.selection.read_bytes()
    assert experiment()[0] == 0
    assert experiment.round.selection.read_bytes() == before


def test_whatif_shows_another_selection_and_writes_nothing(experiment: Experiment) -> None:
    experiment.prepare(weights={"f1": 1})
    assert experiment("--also", "nugget_containment")[0] == 0
    before = experiment.files()
    status, said = experiment("whatif", "--weights", "nugget_containment=1")
    assert status == 0
    assert "1 (0 now kept, 0 now dropped, 1 other trajectories)" in said
    assert "f1=1" in said
    assert "nugget_containment=1" in said
    assert "questions changed" in said
    status, said = experiment("whatif", "--set", "rewards.select={min_reward: -0.5, ties: 2}")
    assert status == 0
    assert "1 (1 now kept, 0 now dropped, 0 other trajectories)" in said
    assert experiment.files() == before


def test_whatif_names_the_command_that_makes_a_missing_score(experiment: Experiment) -> None:
    experiment.prepare(weights={"f1": 1})
    status, said = experiment("whatif", "--weights", "f1=1")
    assert (status, "no such run folder" in said) == (2, True)
    assert experiment()[0] == 0
    status, said = experiment("whatif", "--weights", "em=1,f1=0")
    assert status == 2
    assert "4 of 4 trajectories have no stored em" in said
    assert f"ratchet score --config {experiment.config} --round 1 --also em" in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--weights", "corectness=1"], "there is no 'corectness' in rewards/builtin/ (did you mean 'correctness'?)"),
        (["--weights", "f1"], "expected name=number"),
        (["--weights", "f1=much"], "expected name=number"),
        (["--weights", "f1=-1"], "weights are numbers, one of them above 0"),
        (["--set", "rewards.select.ties=0"], "rewards.select.ties"),
    ],
)
def test_whatif_refuses_bad_words(experiment: Experiment, words: list[str], complaint: str) -> None:
    experiment.prepare(weights={"f1": 1})
    assert experiment()[0] == 0
    status, said = experiment("whatif", *words)
    assert status == 2
    assert complaint in said


def test_nothing_selected_is_an_error_that_says_why(experiment: Experiment) -> None:
    worthless = [
        trajectory(0, answer="none", question="q1"),
        trajectory(0, answer="", question="q2", status="unparsed"),
        trajectory(1, answer="", question="q2", status="failed"),
    ]
    experiment.prepare(worthless, weights={"f1": 1})
    status, said = experiment()
    assert status == 2 and "1 of 4 trajectories are missing" in said
    status, said = experiment("--anyway")
    assert status == 2
    assert "no trajectory was selected" in said
    assert "1 of 2 questions: best reward is not above 0.0" in said
    assert "sampling.samples" in said
    assert "1 of 2 questions: no finished trajectory" in said
    assert "1 trajectories are not sampled yet" in said
    assert [choice.kept for choice in experiment.selection().questions] == [(), ()]


@pytest.mark.slow
def test_a_judge_out_of_reach_selects_nothing_until_accepted(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> str:
        raise EngineError("connection refused")

    monkeypatch.setattr(scoring, "open_engines", lambda models, names: {"judge": scripted_judge(refuse)})
    experiment.prepare(weights={"f1": 1, "correctness": 1}, runs=1)
    status, said = experiment()
    assert status == 2
    assert "4 scores are unfinished" in said
    assert not experiment.round.selection.exists()
    status, said = experiment("--accept-unfinished")
    assert status == 2  # every reward is null, so nothing is kept
    assert "no candidate has all its scores (2 without correctness)" in json.dumps(experiment.selection().model_dump())

    monkeypatch.setattr(scoring, "open_engines", lambda models, names: {"judge": scripted_judge()})
    assert experiment()[0] == 0
    # q1: (1 + 2/3)/2 against (0.8 + 1)/2; q2: both (0 + 1/3)/2, a nugget left unanswered is 1/3 on the paper's scale.
    assert experiment.selection().kept == tuple(made.key for made in TRAJECTORIES[1:])


@pytest.mark.slow
def test_whatif_compares_scores_that_were_stored_under_other_settings(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scripted_judge()
    monkeypatch.setattr(scoring, "open_engines", lambda *_: {"judge": engine})
    experiment.prepare(weights={"correctness": 1}, runs=2)
    assert experiment()[0] == 0
    asked = len(engine.calls)
    assert experiment("--set", "rewards.nuggets_per_call=10")[0] == 0
    assert asked < len(engine.calls) < 2 * asked
    status, said = experiment("whatif")
    assert status == 0
    assert "correctness of 4 trajectories" in said and "mean difference 0.000, correlation 1.000" in said
    assert "judge calls an answer" in said and "equal verdicts " in said and "equal verdicts of two runs" in said
    assert "0 (0 now kept, 0 now dropped, 0 other trajectories)" in said
