"""Krippendorff's alpha against his published example, and agreement read from the scores that judges leave."""

from __future__ import annotations

from typing import Any

import pytest

from evaluation.measures.agreement import judge_agreement, krippendorff_alpha
from ratchet.records import Score

# Four observers, twelve units: Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), section C.
OBSERVERS = [
    "1 2 3 3 2 1 4 1 2 . . .",
    "1 2 3 3 2 2 4 1 2 5 . 3",
    ". 3 3 3 2 3 4 2 2 5 1 .",
    "1 2 3 3 2 4 4 1 2 5 1 .",
]
UNITS = [[float(v) for v in unit if v != "."] for unit in zip(*(row.split() for row in OBSERVERS), strict=True)]


def test_alpha_of_the_published_example() -> None:
    assert krippendorff_alpha(UNITS, ordinal=False) == pytest.approx(0.849, abs=0.0005)
    assert krippendorff_alpha(UNITS, ordinal=True) == pytest.approx(0.815, abs=0.0005)


def test_alpha_of_small_cases_worked_by_hand() -> None:
    # Values 0 0 | 0 1: observed (0 + 1) / 2 a unit = 0.5; expected 2 * 3 / (4 * 3) = 0.5.
    assert krippendorff_alpha([[0, 0], [0, 1]], ordinal=False) == pytest.approx(0.0)
    assert krippendorff_alpha([[0, 0], [1, 1]], ordinal=False) == 1.0
    assert krippendorff_alpha([[0, 1], [1, 0]], ordinal=False) == pytest.approx(-0.5)
    two_values = [[0, 0], [1, 1], [0, 1]]  # the scale does not matter
    assert krippendorff_alpha(two_values, ordinal=True) == pytest.approx(krippendorff_alpha(two_values, ordinal=False))
    assert krippendorff_alpha([[1, 1], [1, 1]], ordinal=True) is None
    assert krippendorff_alpha([[1], [2]], ordinal=True) is None
    assert krippendorff_alpha([], ordinal=False) is None


def correctness(key: str, *nuggets: list[int | None]) -> Score:
    """Each nugget's verdicts, run by run."""
    verdicts: list[dict[str, Any]] = [{"part": "nuggets", "source": "reference", "nuggets": []}]
    verdicts += [
        {"part": "nugget", "nugget": number, "run": run, "score": score, "text": ""}
        for number, scores in enumerate(nuggets)
        for run, score in enumerate(scores)
    ]
    return Score(trajectory=key, name="correctness", value=0.5, verdicts=tuple(verdicts))


def test_runs_with_nuggets_of_their_own_are_compared_by_their_means() -> None:
    verdicts = [
        {"part": "nuggets", "source": "reference", "run": 0, "nuggets": []},
        {"part": "nuggets", "source": "reference", "run": 1, "nuggets": []},
        {"part": "nugget", "nugget": 0, "run": 0, "score": 2, "text": ""},
        {"part": "nugget", "nugget": 1, "run": 0, "score": -1, "text": ""},
        {"part": "nugget", "nugget": 0, "run": 1, "score": -1, "text": ""},
        {"part": "nugget", "nugget": 1, "run": 1, "score": 2, "text": ""},
    ]
    found = judge_agreement([Score(trajectory="t", name="correctness", value=0.5, verdicts=tuple(verdicts))])
    assert (found["correctness"].units, found["correctness"].identical) == (1, 1.0), "nugget 0 is another in each run"


def claimed(key: str, *runs: list[int | None] | None, name: str = "faithfulness") -> Score:
    """The scores of each run's claims; None: the claims could not be read."""
    verdicts: list[dict[str, Any]] = [{"part": "claims", "run": run, "text": ""} for run in range(len(runs))]
    verdicts += [
        {"part": "support", "run": run, "scores": s, "text": ""} for run, s in enumerate(runs) if s is not None
    ]
    return Score(trajectory=key, name=name, value=0.5, verdicts=tuple(verdicts))


def test_correctness_agrees_nugget_by_nugget() -> None:
    found = judge_agreement([correctness("a", [2, 2, 2], [0, 1, None]), correctness("b", [-1, -1, 0], [2, None, None])])
    it = found["correctness"]
    assert (it.runs, it.units, it.nulls) == (3, 3, 3)
    assert it.identical == pytest.approx((3 + 0 + 1) / (3 + 1 + 3))
    assert it.alpha == krippendorff_alpha([[2, 2, 2], [0, 1], [-1, -1, 0]], ordinal=True)


def test_claims_of_different_runs_are_compared_by_their_means() -> None:
    scores = [
        claimed("a", [1, 1], [1]),
        claimed("b", [1, -1], [0, 0, 0]),
        claimed("c", [1], [-1]),
        claimed("d", [1], None),
    ]
    it = judge_agreement(scores)["faithfulness"]
    assert (it.runs, it.units, it.nulls) == (2, 3, 1)
    assert it.identical == pytest.approx(2 / 3)
    assert it.alpha == krippendorff_alpha([[1, 1], [0.5, 0.5], [1, 0]], ordinal=False)


def test_null_verdicts_are_counted_and_rules_have_no_judge() -> None:
    scores = [claimed("a", None, None), claimed("b", [None], []), Score(trajectory="a", name="em", value=1.0)]
    scores.append(Score(trajectory="e", name="correctness", value=0.0, reason="the answer is empty"))
    found = judge_agreement(scores)
    assert set(found) == {"faithfulness"}
    it = found["faithfulness"]
    assert (it.nulls, it.units, it.identical, it.alpha) == (4, 0, None, None)
