"""`python -m evaluation agreement --human FILE`, from the words to the table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from commands.arguments import run_command
from commands.evaluate import main
from inference.engine import EngineError
from ratchet.errors import UserError
from rewards import scoring
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
    return next(
        [cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if line.startswith(f"│ {name} ")
    )


def test_without_names_every_reward_without_a_judge_is_compared_with_f1(run: Run) -> None:
    status, said = run("--human", "human.json")
    assert status == 0, said
    assert "12 pairs of answers to 12 questions, 24 labels" in said
    assert cells(said, "people, one with another")[3].startswith("100.0")
    f1, length = cells(said, "f1"), cells(said, "answer length, words")
    assert float(f1[3].split()[0]) > 90 and float(f1[4]) > 80 and f1[5] == "" and f1[6] == "0"
    assert float(length[3].split()[0]) < -90 and length[5].startswith("-1")
    assert {"em", "reference_similarity", "token recall"} <= {line[2:].split("  ")[0] for line in said.splitlines()}
    assert "nugget_containment: the question has no nuggets" in said and "accuracy: the question has no label" in said
    assert "lexical_support: it is the same for both answers" in said
    assert not Path("runs").exists(), "nothing is stored without a config"


def test_files_and_weighted_means_are_rewards_too(run: Run) -> None:
    Path("brief.py").write_text("def score(question, trajectory):\n    return 1 / len(trajectory.answer.split())\n")
    Path("never.py").write_text("def score(question, trajectory):\n    return None, 'it cannot be told'\n")
    words = ["--reward", "./brief.py", "--reward", "f1=1,./brief.py=0.5", "--reward", "never.py"]
    status, said = run("--human", "human.json", *words, "--against", "em")
    assert status == 0, said
    assert float(cells(said, "./brief.py")[3].split()[0]) > 90
    assert cells(said, "f1=1,./brief.py=0.5")[6] == "0" and "less em" in said
    assert "never.py: it cannot be told" in said and "reference_similarity" not in said


def test_a_missing_embedder_hides_its_rewards_only_where_they_were_not_asked_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: object) -> object:
        raise UserError("this model is not installed")

    monkeypatch.setattr(scoring, "open_embedder", lambda _: missing)
    status, said = run("--human", "human.json")
    assert status == 0 and "reference_similarity: this model is not installed" in said and cells(said, "f1")
    status, said = run("--human", "human.json", "--reward", "reference_similarity")
    assert status == 2 and "error: this model is not installed" in said


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
    assert float(cells(said, "correctness")[3].split()[0]) > 90
    assert cells(said, "correctness=2,f1=1")[6] == "0"
    asked = len(engine.calls)
    status, again = run(*words)
    assert cells(again, "correctness") == cells(said, "correctness")
    assert status == 0 and len(engine.calls) == asked, "nothing is asked again"
    assert len(list((tmp_path / "run/human").glob("*/correctness-*.jsonl"))) == 1


def test_a_reward_may_be_compared_with_one_that_tells_nothing(run: Run) -> None:
    status, said = run("--human", "human.json", "--reward", "f1", "--against", "lexical_support")
    assert status == 0 and cells(said, "f1")[5] == "", said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--human", "empty.json"], "1 of 13 pairs have an empty gt_answer"),
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
