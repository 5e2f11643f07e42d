"""Power by the normal approximation, against known values and against simulated evaluations."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.comparisons import make_arm
from evaluation.measures.statistics import sign_flip_p
from evaluation.power import paired_differences, questions_needed, smallest_gain
from evaluation.results import Arm
from ratchet.records import Question, Trajectory


def test_known_values() -> None:
    # Standardised differences of 0.2, 0.5 and 0.8 (Cohen's small, medium, large), two-sided 0.05, power 0.8.
    assert [questions_needed(1.0, gain, 0.05) for gain in (0.2, 0.5, 0.8)] == [197, 32, 13]
    assert smallest_gain(0.4, 500, 0.05) == pytest.approx(2.8016 * 0.4 / 500**0.5, rel=1e-4)
    assert questions_needed(0.4, smallest_gain(0.4, 500, 0.05) * 1.0001, 0.05) == 500
    assert questions_needed(0.1, 50.0, 0.05) == 2


@pytest.mark.parametrize("kind", ["normal", "exact match"])
def test_simulated_evaluations_find_the_gain_as_often_as_planned(kind: str) -> None:
    rng = np.random.default_rng(3)
    found, trials, gain = 0, 300, 0.1
    better, worse = 0.25, 0.15  # shares of questions on which one system alone is right
    sd = 0.4 if kind == "normal" else float(np.sqrt(better + worse - gain**2))
    n = questions_needed(sd, gain, 0.05)
    for seed in range(trials):
        if kind == "normal":
            differences = rng.normal(gain, sd, n)
        else:
            differences = rng.choice([1.0, -1.0, 0.0], n, p=[better, worse, 1 - better - worse])
        found += sign_flip_p(differences.tolist(), 300, seed) <= 0.05
    assert found / trials == pytest.approx(0.8, abs=0.07)


QUESTIONS = [Question(id=f"q{i}", text="?", answers=("sea",)) for i in range(4)]


def arm(name: str, right: list[list[int]]) -> Arm:
    """`right[i]` are question i's samples, 1 where right."""
    made = [
        Trajectory(
            key=f"{name}-{i}-{sample}", question_id=f"q{i}", system="s", policy="base", sample=sample, seed=0,
            status="finished", answer="sea" if hit else "hill",
        )
        for i, hits in enumerate(right)
        for sample, hit in enumerate(hits)
    ]  # fmt: skip
    return make_arm(name, "s", "base", QUESTIONS, made, {}, ("em",), {}, 100, 0)


def test_a_question_counts_once_however_many_trajectories_it_has() -> None:
    base, other = arm("base", [[1], [0], [0], [1]]), arm("other", [[1, 0], [1, 1, 1, 1], [0], [1]])
    assert paired_differences(base, other, "em") == [-0.5, 1.0, 0.0, 0.0]
    assert paired_differences(base, arm("fewer", [[1], [1]]), "em") == [0.0, 1.0]
    assert paired_differences(base, other, "faithfulness") == []
