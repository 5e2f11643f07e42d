"""The scores of a debate by agent, round, and right and wrong: the numbers, and the figures of one command."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.tables.stability import known_values, mean_by_trajectory, score_table
from evaluation.tables.thresholds import turn_scores
from questions.labels import FEVER
from ratchet.records import Question, Trajectory, Turn
from tests.evaluation.tables.test_thresholds import Command

QUESTION = Question(id="q", text="It is so.", form="claim", labels=FEVER, label="SUPPORTS")


def trajectory(key: str, answer: str, *turns: tuple[int, str, str, float | None]) -> Trajectory:
    return Trajectory(
        key=key,
        question_id="q",
        system="tool_mad",
        policy="base",
        sample=0,
        seed=0,
        status="finished",
        answer=answer,
        turns=tuple(
            Turn(round=number, speaker=agent, said="so", verdict=verdict, scores={"faithfulness": value})
            for number, agent, verdict, value in turns
        ),
    )


SCORES = list(
    turn_scores(
        [QUESTION],
        [
            trajectory("a", "SUPPORTS", (1, "rag", "REFUTES", 0.25), (2, "rag", "SUPPORTS", 0.75)),
            trajectory("b", "REFUTES", (1, "rag", "SUPPORTS", 1.0), (1, "search", "REFUTES", None)),
        ],
    )
)


def test_figure_11_goes_by_a_turns_label_and_figure_3_by_the_answer() -> None:
    assert (known_values(SCORES, True), known_values(SCORES, False)) == ([0.75, 1.0], [0.25])
    assert (mean_by_trajectory(SCORES, True), mean_by_trajectory(SCORES, False)) == ([0.5], [1.0])


def test_the_table_has_a_row_for_each_agent_and_round_and_counts_what_is_unknown() -> None:
    columns = [list(column.cells) for column in score_table("t", SCORES).columns]
    assert list(zip(*columns, strict=True)) == [
        ("rag", "1", "faithfulness", "1", "1.000", "1", "0.250", "0"),
        ("rag", "2", "faithfulness", "1", "0.750", "0", "-", "0"),
        ("rag", "all", "faithfulness", "2", "0.875", "1", "0.250", "0"),
        ("search", "1", "faithfulness", "0", "-", "0", "-", "1"),
        ("search", "all", "faithfulness", "0", "-", "0", "-", "1"),
    ]


@pytest.mark.slow
def test_one_command_draws_the_figures_of_every_set_that_was_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(tmp_path, monkeypatch, capsys)
    status, said = command("stability")
    assert status == 2 and "run it first" in said
    assert command("run", "--split", "dev", "--base-only")[0] == 0
    status, said = command("stability")
    assert status == 0 and "dev, debate" in said
    folder = tmp_path / "run/round-1/evaluation/stability"
    assert {path.name for path in folder.iterdir()} == {"scores-dev-debate.svg", "means-debate.svg"}
    drawn = {path.name: path.read_text() for path in folder.iterdir()}
    assert "rag 1: faithfulness" in drawn["scores-dev-debate.svg"] and "right, 1" in drawn["scores-dev-debate.svg"]
    assert command("stability", "--format", "png", "--out", str(tmp_path / "png"))[0] == 0
    assert (tmp_path / "png/means-debate.png").read_bytes().startswith(b"\x89PNG")
    command("stability")
    assert {path.name: path.read_text() for path in folder.iterdir()} == drawn, "the same records, the same files"
