"""The tables of an evaluation are complete in a terminal of 80 columns, and in a pipe."""

import io
from collections.abc import Callable
from functools import cache
from typing import TextIO

import pytest

from ratchet.core.records import Question, Trajectory
from ratchet.evaluation.comparisons import best_baseline
from ratchet.evaluation.formats import format_number
from ratchet.evaluation.headline import verdict
from ratchet.evaluation.measures.estimates import Estimate
from ratchet.evaluation.measures.measures import DERIVED, FORMS, OTHERS
from ratchet.evaluation.results import Arm, Results
from ratchet.evaluation.sweep_results import CellResult, SetFacts, SweepResults, print_sweep
from ratchet.evaluation.tables.comparison import print_measures, print_summary
from ratchet.evaluation.tables.suite import print_members, print_suite
from ratchet.evaluation.tables.verification import print_verdicts
from tests.helpers.arms import make_arm
from tests.helpers.verdict_arms import claims, compared, results_of

JUDGED = ("correctness", "correctness_raw", "precision", "faithfulness", "faithfulness_raw", "relevance")
EVERY = [*(name + form for name in (*JUDGED, "lexical_support", "reported", *DERIVED) for form in FORMS), *OTHERS]
NAMES = ("base", "adapter", "naive_rag_with_twenty_passages", "iterative_retrieval_generation")


def wide_arm(name: str, right: int) -> tuple[list[Question], Arm]:
    """An arm that has every measure, with large costs."""
    questions = [
        Question(id=str(i), text="?", answers=("yes",), kind=("one hop", "two hops")[i % 2]) for i in range(40)
    ]
    made = [
        Trajectory(
            key=f"{name}{i}", question_id=str(i), system="multi_agent_rag", policy="base", sample=0, seed=0,
            status="finished", answer="yes" if i < right else "no",
        )
        for i in range(40)
    ]  # fmt: skip
    arm = make_arm(name, "multi_agent_rag", "base", questions, made, {}, ("em", "f1"), {})
    costs = dict.fromkeys(("prompt_tokens", "cached_tokens", "new_tokens", "seconds", "calls", "searches"), 123456.7)
    more = {
        **{m: Estimate(mean=-0.123, low=-0.246, high=0.333, n=40) for m in EVERY if m not in arm.measures},
        **{m: Estimate(mean=v, low=v / 2, high=2 * v, n=40) for m, v in costs.items()},
    }
    more = {m: found for m, found in more.items() if not m.startswith("macro")}
    values = {i: row | {m: found.mean for m, found in more.items()} for i, row in arm.values.items()}
    return questions, arm.model_copy(update={"measures": arm.measures | more, "values": values})


@cache
def invented(title: str = "2WikiMultihopQA, shuffled") -> Results:
    made = [wide_arm(name, 4 + 10 * n) for n, name in enumerate(NAMES)]
    questions, arms = made[0][0], [arm for _, arm in made]
    results, best = compared(title, questions, arms, "f1"), best_baseline(arms, "f1", 0)
    headline, numbers = verdict(results.comparisons[0], "f1", best)
    return results.model_copy(update={"best_baseline": best, "headline": headline, "numbers": numbers})


LONG = "iterative_retrieval_generation_with_a_reader"


def show_sweep(out: TextIO) -> None:
    cells = tuple(
        CellResult(checkpoint=f"{LONG}-{n}", system=LONG, split="dev", stage="dev", arm=wide_arm(LONG, n)[1])
        for n in range(2)
    )
    facts = SetFacts(name="dev", title="dev", stage="dev", questions=40, digest="", measure="f1")
    print_sweep(
        SweepResults(
            run="r", samples=1, seed=0, resamples=10, checkpoints=(), systems={LONG: LONG}, sets=(facts,), cells=cells,
            missing=(), choices=(), undecided=(), notes=(),
        ),
        out,
    )  # fmt: skip


def tables() -> dict[str, Callable[[TextIO], None]]:
    labelled = results_of(claims("SRNSRNSRNS"), {"base": ["SRNSRUXS!?"], "adapter": ["SRNSRNSRNU"]})
    return {
        "summary": lambda out: print_summary([invented()], out),
        "summaries": lambda out: print_summary([invented(), invented("HotpotQA"), labelled], out),
        "comparison": lambda out: print_measures(invented(), out),
        "suite": lambda out: print_suite([invented(), invented("HotpotQA"), labelled], out),
        "verdicts": lambda out: print_verdicts([labelled], out),
        "members": lambda out: print_members([(LONG, invented()), ("b", invented("HotpotQA"))], out),
        "sweep": show_sweep,
    }


@pytest.mark.parametrize("name", ["summary", "summaries", "comparison", "suite", "verdicts", "members", "sweep"])
@pytest.mark.parametrize("columns", ["80", ""])
def test_a_table_is_complete_in_80_columns_and_in_a_pipe(
    name: str, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    else:
        monkeypatch.delenv("COLUMNS", raising=False)
    out = io.StringIO()
    tables()[name](out)
    lines = out.getvalue().splitlines()
    assert len(lines) > 3 and "…" not in out.getvalue(), out.getvalue()
    if columns:
        assert [line for line in lines if len(line.rstrip()) > 80] == []


def test_the_comparison_is_a_table_in_80_columns_where_its_numbers_are_of_a_usual_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    results, out = invented(), io.StringIO()
    arms = [
        arm.model_copy(update={"measures": {m: f for m, f in arm.measures.items() if (f.mean or 0) < 1000}})
        for arm in results.arms
    ]
    print_measures(results.model_copy(update={"arms": tuple(arms)}), out)
    [row] = [line for line in out.getvalue().splitlines() if line.split()[:2] == ["F1", "strict"]]
    assert row.split()[2:] == ["0.100", "0.350", "+0.250", "[0.125,", "0.375]", ".002"]
    assert "Unattributed sentences" in out.getvalue() and max(map(len, out.getvalue().splitlines())) <= 80
    assert "…" not in out.getvalue()


def test_means_are_those_of_the_questions_that_a_difference_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row such as 0.000, 0.300, +0.125 would look wrong."""
    monkeypatch.setenv("COLUMNS", "80")
    results, out = results_of(claims("SRNSRNSRNS"), {"base": ["SRNS??????"], "adapter": ["RRNSRNSRNR"]}), io.StringIO()
    print_measures(results, out)
    [row] = [line for line in out.getvalue().splitlines() if line.startswith("Accuracy lenient")]
    assert row.split()[2:6] == ["(4)", "1.000", "0.750", "-0.250"], "over all ten the trained arm has 0.8"


def test_a_rounded_zero_has_no_minus_sign() -> None:
    assert (format_number(-0.0004, 3), format_number(-0.25, 2, sign=True)) == ("0.000", "-0.25")


def test_a_comparison_has_one_p_value(monkeypatch: pytest.MonkeyPatch) -> None:
    results, out = invented(), io.StringIO()
    print_suite([results, invented("HotpotQA")], out)
    [row, _] = [line for line in out.getvalue().splitlines() if "(adapter)" in line and "0.002" in line]
    assert (comparison := results.comparison("adapter")) and f"{comparison.measures['f1'].p:.3f}" in row
