"""The table of an ablation against the same numbers by hand."""

import csv
import io
from collections.abc import Mapping

import pytest

from ratchet.core.escape import latex_text
from ratchet.evaluation.ablation import Ablation, RunResults, ablation_csv, ablation_latex, compare_arms, print_ablation
from ratchet.evaluation.measures.statistics import sign_flip_p
from ratchet.evaluation.results import Arm, Results

ARMS = {"best": (), "two_ties": ("rewards.select.ties=2",), "dpo": ("training.objective=dpo",)}


def arm(name: str, values: Mapping[str, float]) -> Arm:
    of_question = {question: {"f1": value} for question, value in values.items()}
    facts = {"system": "mrag", "policy": "base", "trajectories": 0, "statuses": {}, "measures": {}, "kinds": {}}
    return Arm.model_validate({"name": name, "values": of_question, "answered": {}, **facts})


def measured(values: Mapping[str, float], commit: str = "abc", promoted: bool = True) -> RunResults:
    arms = [arm("base", dict.fromkeys(values, 0.0))]
    arms += [arm("adapter", values)] if promoted else []
    numbers = {"round": 1, "split": "test", "title": "NQ", "samples": 1, "seed": 0, "resamples": 1}
    results = Results(
        **numbers, questions=len(values), primary="f1", arms=tuple(arms), comparisons=(), headline="", numbers=""
    )
    return RunResults((results,), 7, frozenset({commit}))


def table(**changes: RunResults) -> Ablation:
    """Three arms with two seeds, the second one of dpo being missing."""
    runs = {
        ("best", 1): measured({f"q{i}": 0.0 for i in range(8)}),
        ("best", 2): measured({f"q{i}": 0.5 for i in range(8)}),
        ("two_ties", 1): measured({f"q{i}": 0.5 for i in range(8)}),
        ("two_ties", 2): measured({f"q{i}": 0.5 + 0.1 * (i % 2) for i in range(8)}),
        ("dpo", 1): measured({f"q{i}": float(i == 0) for i in range(8)}),
    }
    return compare_arms(ARMS, (1, 2), runs, seed=0)


def test_an_arm_is_compared_by_question_over_the_seeds_that_both_have() -> None:
    [one] = table().sets
    best, ties, dpo = one.rows
    assert best.seeds == (0.0, 0.5) and best.mean.mean == 0.25 and best.difference.mean is None and best.p is None
    assert ties.seeds == pytest.approx((0.5, 0.55)) and ties.mean.n == 8
    assert ties.difference.mean == pytest.approx(0.275) and ties.difference.before == 0.25
    assert dpo.seeds == (0.125, None) and dpo.kept == (7, None)
    assert dpo.difference.before == 0.0 and dpo.difference.mean == 0.125, "of the first seed alone"
    gains = [0.25 if i % 2 == 0 else 0.3 for i in range(8)]
    assert ties.difference.p == sign_flip_p(gains, 0) == 2 / 2**8
    assert ties.p == 2 * ties.difference.p, "Holm: the smallest of two"
    assert dpo.p == dpo.difference.p == 1.0


def test_a_run_that_promoted_nothing_has_the_values_of_the_base_model() -> None:
    runs = {("best", 1): measured({"q": 1.0}), ("two_ties", 1): measured({"q": 1.0}, promoted=False)}
    [one] = compare_arms(ARMS, (1,), runs, seed=0).sets
    assert [row.seeds for row in one.rows] == [(1.0,), (0.0,), (None,)]


def test_the_csv_has_every_number_in_full() -> None:
    rows = list(csv.DictReader(io.StringIO(ablation_csv(table()))))
    assert [row["arm"] for row in rows] == list(ARMS)
    assert rows[1]["set"] == "rewards.select.ties=2" and float(rows[1]["difference"]) == pytest.approx(0.275)
    assert float(rows[1]["p_holm"]) == 4 / 2**8 and rows[2]["mean_seed_2"] == "" and rows[0]["commits"] == "abc"


def test_the_latex_is_a_table_of_booktabs() -> None:
    lines = ablation_latex(table()).splitlines()
    assert lines[:3] == ["% Commit: abc", r"\begin{tabular}{lrrrrrrr}", r"\toprule"]
    assert r"two\_ties & 0.000 & 0.500 & 0.550 & 7 7 & 0.525 [0.506, 0.544] & +0.275 [0.256, 0.294] & 0.016" in lines[7]
    assert all(line.count(" & ") == 7 for line in lines if line.startswith(("arm", "best", "two", "dpo")))
    assert latex_text(r"a_b 50% -0.12 [-0.2, 0.1] <0.001 \x") == (
        r"a\_b 50\% $-$0.12 [$-$0.2, 0.1] $<$0.001 \textbackslash{}x"
    )


def test_the_text_names_the_commits_that_are_not_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    runs = {("best", 1): measured({"q": 1.0}), ("dpo", 1): measured({"q": 1.0}, commit="def+changes")}
    print_ablation(compare_arms(ARMS, (1,), runs, seed=0))
    assert "Commits (not all runs have the same): abc, def+changes" in capsys.readouterr().out
