"""Agreement of a judge's runs, read from the scores that judges leave."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.core.selection import Score
from ratchet.evaluation.measures.agreement import agreement_table


def rows(scores: list[Score]) -> list[list[str]]:
    """The cells of the table, without the headings."""
    table = agreement_table(scores)
    return [list(map(str, cells)) for cells in zip(*(column.cells for column in table.columns), strict=True)]


def correctness(key: str, *nuggets: list[int | None]) -> Score:
    """Each nugget's verdicts, run by run."""
    verdicts: list[dict[str, Any]] = [{"part": "nuggets", "source": "reference", "nuggets": []}]
    verdicts += [
        {"part": "nugget", "nugget": number, "run": run, "score": score, "text": ""}
        for number, scores in enumerate(nuggets)
        for run, score in enumerate(scores)
    ]
    return Score(trajectory=key, name="correctness", value=0.5, verdicts=tuple(verdicts))


def claimed(key: str, *runs: list[int | None] | None, name: str = "faithfulness") -> Score:
    """The scores of each run's claims; None: the claims could not be read."""
    verdicts: list[dict[str, Any]] = [{"part": "claims", "run": run, "text": ""} for run in range(len(runs))]
    verdicts += [
        {"part": "support", "run": run, "scores": s, "text": ""} for run, s in enumerate(runs) if s is not None
    ]
    return Score(trajectory=key, name=name, value=0.5, verdicts=tuple(verdicts))


def test_runs_are_compared_by_what_each_gives_a_trajectory() -> None:
    scores = [
        claimed("a", [1, 1], [1]),
        claimed("b", [1, -1], [0, 0, 0]),
        claimed("c", [1], [-1]),
        claimed("d", [1], None),
    ]
    [row] = rows(scores)
    values = [(1, 1), (1, 1), (0.5, 0.5), (0.5, 0.5), (1, 0), (0, 1)]
    mean = sum(x for x, _ in values) / 6
    expected = sum((x - mean) * (y - mean) for x, y in values) / sum((x - mean) ** 2 for x, _ in values)
    assert row[:4] == ["faithfulness", "2", "3", "1"]
    assert float(row[4]) == pytest.approx(2 / 3, abs=5e-4) and float(row[5]) == pytest.approx(expected, abs=5e-4)


def test_nuggets_are_averaged_over_each_run() -> None:
    [row] = rows([correctness("a", [2, 2], [-1, 2]), correctness("b", [-1, -1]), correctness("c", [2, None])])
    assert row[:4] == ["correctness", "2", "2", "1"] and float(row[4]) == 0.5


def test_missing_verdicts_are_counted_and_rules_have_no_judge() -> None:
    scores = [claimed("a", None, None), claimed("b", [None], []), Score(trajectory="a", name="em", value=1.0)]
    scores.append(Score(trajectory="e", name="correctness", value=0.0, reason="the answer is empty"))
    assert rows(scores) == [["faithfulness", "2", "0", "3", "-", "-"]]


def test_a_run_that_finds_no_claims_gives_0_as_in_the_score() -> None:
    [row] = rows([claimed("a", [], [-1]), claimed("b", [], [1])])
    assert row[1:5] == ["2", "2", "0", "0.500"]
