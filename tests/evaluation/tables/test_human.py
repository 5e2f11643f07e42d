"""`ratchet evaluate agreement --human FILE`, from the words to the table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from ratchet.commands.arguments import run_command
from ratchet.commands.evaluate import main
from ratchet.inference.engine import EngineError
from ratchet.rewards import scoring
from tests.helpers.labelled_pairs import labelled
from tests.helpers.reward_cases import Material, judge_reply, make_config, scripted_judge

Run = Callable[..., tuple[int, str]]

# The reference is in the better answer, and the other one is longer.
RIGHT, WRONG = "the reference", "something else that is said at length"
ROWS = [
    labelled(f"q{at}", [2, 1, 2 - at % 2], WRONG, RIGHT)
    if at % 3
    else labelled(f"q{at}", [-2, -1, -2 + at % 2], f"{RIGHT}.", WRONG)
    for at in range(12)
    for _ in range(2)
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """(exit status, everything printed) of the command on a file of twelve pairs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("human.json").write_text(json.dumps(ROWS))
    monkeypatch.setattr(scoring, "open_embedder", lambda _: lambda texts: np.ones((len(texts), 1), np.float32))

    def start(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["evaluation", "agreement", *words])
        status = 0
        try:
            run_command(main)
        except SystemExit as end:
            status = int(str(end.code))
        said = capsys.readouterr()
        return status, said.out + said.err

    return start


def cells(said: str, name: str) -> list[str]:
    lines = (line.strip() for line in said.splitlines())
    return next(line.removeprefix(f"{name} ").split() for line in lines if line.startswith(f"{name} "))


def test_without_names_every_reward_without_a_model_is_shown(run: Run) -> None:
    status, said = run("--human", "human.json")
    assert status == 0, said
    assert "12 pairs, 12 questions, 24 labels" in said
    assert cells(said, "people, one with another")[2].startswith("100.0")
    f1, length = cells(said, "f1"), cells(said, "answer length, words")
    assert float(f1[2]) > 90 and float(f1[-2]) > 80 and f1[-1] == "0" and float(length[2]) < -90
    assert cells(said, "nugget_containment")[-1] == "12", "no question has nuggets"
    assert cells(said, "lexical_support")[2] == "-", "it is the same for both answers"
    assert "reference_similarity" not in said, "it needs an embedder"
    assert not Path("runs").exists(), "nothing is stored without a config"


def test_files_and_weighted_means_are_rewards_too(run: Run) -> None:
    Path("brief.py").write_text("def score(question, trajectory):\n    return 1 / len(trajectory.answer.split())\n")
    words = ["--reward", "./brief.py", "--reward", "f1=1,./brief.py=0.5", "--reward", "reference_similarity"]
    status, said = run("--human", "human.json", *words)
    assert status == 0, said
    assert float(cells(said, "./brief.py")[2]) > 90
    assert cells(said, "f1=1,./brief.py=0.5")[-1] == "0" and cells(said, "reference_similarity")


def test_a_judge_scores_once_and_its_scores_are_stored(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, [], rewards={"runs": 2, "weights": {"correctness": 2.0, "f1": 1.0}})
    Path("config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    words = ["--human", "human.json", "--config", "config.yaml"]

    def reply(given: Material) -> str:
        if "aspect" in given and down:
            raise EngineError("the judge is not available")
        return judge_reply(given)

    down = True
    engine = scripted_judge(reply)
    monkeypatch.setattr(scoring, "open_engines", lambda *_: {"judge": engine})
    status, said = run(*words)
    assert status == 2 and "scores are unfinished" in said and "run the same command again" in said
    down = False
    status, said = run(*words)
    assert status == 0, said
    assert float(cells(said, "correctness")[2]) > 90
    assert cells(said, "correctness=2,f1=1")[-1] == "0"
    asked = len(engine.calls)
    status, again = run(*words)
    assert cells(again, "correctness") == cells(said, "correctness")
    assert status == 0 and len(engine.calls) == asked, "nothing is asked again"
    assert len(list((tmp_path / "run/human").glob("*/correctness-*.jsonl"))) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--human", "empty.json"], "row 25: gt_answer is empty"),
        (["--human", "human.json", "--reward", "correctness"], "correctness: a judge gives these scores; add --config"),
        (["--human", "human.json", "--reward", "f2"], "--reward: there is no 'f2'"),
        (["--human", "human.json", "--reward", "f1=x"], "--reward f1=x: expected name=number"),
        (["--human", "nothing.json"], "nothing.json: cannot read"),
        (["--reward", "f1"], "add --human FILE"),
        ([], "add --config for the judge's agreement with itself, or --human FILE"),
    ],
)
def test_what_is_missing_is_named(run: Run, words: list[str], message: str) -> None:
    Path("empty.json").write_text(json.dumps([*ROWS, {**ROWS[0], "gt_answer": ""}]))
    status, said = run(*words)
    assert status == 2 and message in said
