"""Scores of a debate's turns: thresholds by quantile on dev, and the table of who reaches them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import load_config
from ratchet.core.errors import UserError
from ratchet.core.records import Question, Trajectory, Turn
from ratchet.evaluation.tables.verification import (
    TurnScore,
    find_thresholds,
    known_values,
    threshold_table,
    turn_scores,
)
from ratchet.questions.labels import FEVER
from tests.helpers.commands import command_of
from tests.helpers.scripted import scripted_experiment

main = command_of("evaluate")

QUESTION = Question(id="q", text="It is so.", form="claim", labels=FEVER, label="SUPPORTS")


def trajectory(key: str, answer: str, *turns: tuple[int, str, str, float | None], question: str = "q") -> Trajectory:
    fields: dict[str, Any] = {"system": "tool_mad", "policy": "base", "sample": 0, "seed": 0, "status": "finished"}
    made = tuple(
        Turn(round=number, speaker=agent, said="so", verdict=verdict, scores={"faithfulness": value})
        for number, agent, verdict, value in turns
    )
    return Trajectory(key=key, question_id=question, answer=answer, turns=made, **fields)


UNLABELLED = QUESTION.model_copy(update={"id": "u", "label": None})
SCORES = list(
    turn_scores(
        [QUESTION, UNLABELLED],
        [
            trajectory("a", "SUPPORTS", (1, "rag", "REFUTES", 0.25), (2, "rag", "SUPPORTS", 0.75)),
            trajectory("b", "REFUTES", (1, "rag", "SUPPORTS", 1.0), (1, "search", "REFUTES", None)),
            trajectory("c", "REFUTES", (1, "rag", "", 0.1)),
            trajectory("d", "SUPPORTS", (1, "rag", "SUPPORTS", 0.9), question="u"),
        ],
    )
)


def test_scores_are_those_of_turns_with_a_label_and_right_where_the_label_is() -> None:
    assert len(SCORES) == 4, "turns without a label and questions without one have no scores"
    right, wrong = (known_values(SCORES, side, "faithfulness") for side in (True, False))
    assert (right, wrong) == ([0.75, 1.0], [0.25])


def scores_of(name: str, right: list[float], wrong: list[float | None]) -> list[TurnScore]:
    values = [*((value, True) for value in right), *((value, False) for value in wrong)]
    return [TurnScore(name, value, is_right) for value, is_right in values]


@pytest.mark.parametrize(("quantile", "threshold"), [(0.0, 0.1), (0.25, 0.2), (0.3, 0.2), (0.5, 0.666), (1.0, 0.8)])
def test_a_threshold_is_reached_by_the_share_that_was_asked_for(quantile: float, threshold: float) -> None:
    right = [0.8, 0.1, 2 / 3, 0.2, 0.7]
    assert find_thresholds(scores_of("faithfulness", right, []), quantile) == {"faithfulness": threshold}
    assert sum(value >= threshold for value in right) >= (1 - quantile) * len(right)


def test_the_table_shows_who_reaches_a_threshold_and_what_is_unknown() -> None:
    scores = scores_of("relevance", [0.5, 1.0], [0.9, 0.1, 0.2, 0.3, None]) + scores_of("faithfulness", [], [0.5])
    thresholds = find_thresholds(scores, 0.0)
    assert thresholds == {"relevance": 0.5, "faithfulness": None}, "without a right answer there is no threshold"
    columns = [list(column.cells) for column in threshold_table("dev", scores, thresholds).columns]
    assert list(zip(*columns, strict=True)) == [
        ("relevance", "0.500", "2", "100.0%", "4", "25.0%", "1"),
        ("faithfulness", "-", "0", "-", "1", "-", "0"),
    ]


def debate_config(folder: Path) -> Path:
    """The config of one claim, whose debate is scripted."""
    script = [
        {"match": '"statements": {', "reply": '{"verdicts": [1, 0]}'},
        {"match": '"noncommittal"', "reply": "unreadable, so that no embedder is needed"},
        {"match": '"statements"', "reply": '{"statements": ["a", "b"]}'},
        {"prompt": "Write one query", "reply": "[harbour]"},
        {"default": "It is.\nSUPPORTS"},
    ]
    debate = {"name": "tool_mad", "settings": {"agents": ["rag", "rag"], "rounds": 1, "questions": 1}}
    return scripted_experiment(
        folder,
        script,
        {"test": [QUESTION.model_dump(mode="json")]},
        rewards={"weights": {"accuracy": 1.0}},
        evaluation={"scores": ["accuracy"], "baselines": {"debate": debate}},
    )


def test_thresholds_come_from_dev(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = debate_config(tmp_path)
    words = ["--config", str(config)]
    with pytest.raises(UserError, match="--split dev"):
        main(["thresholds", *words])
    with pytest.raises(SystemExit):
        main(["thresholds", "--help"])
    assert "evaluation.benchmarks (default: dev)" in " ".join(capsys.readouterr().out.split())
    main([*words, "--split", "dev", "--base-only"])
    capsys.readouterr()
    main(["thresholds", *words, "--quantile", "0.5"])
    said = capsys.readouterr().out
    [flag] = re.findall(r"--set '(embedder\.thresholds=.*)'", said)
    calibrated = load_config(config, [flag]).embedder.thresholds
    assert (calibrated.faithfulness, calibrated.relevance) == (0.5, 0.8), "one setting, which every debate reads"
    with pytest.raises(UserError, match="from 0 to 1"):
        main(["thresholds", *words, "--quantile", "25"])
    main([*words, "--split", "test", "--base-only"])
    with pytest.raises(UserError, match="never on the questions that are reported"):
        main(["thresholds", *words, "--split", "test"])
