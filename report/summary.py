"""The few numbers under a report's headline, as rows of a table: what changed from which arm to the trained model."""

from __future__ import annotations

from typing import TypedDict

from ratchet.evaluation.formats import format_p_value
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.measures.measures import BY_NAME, answered_measure, strict_form
from ratchet.evaluation.results import TRAINED, BaselineComparison, Results
from ratchet.report.rounds import interval, number


class SummaryRow(TypedDict):
    """One change, in words and formatted numbers; empty where there is none."""

    title: str
    before: str
    after: str
    difference: str
    interval: str
    p: str


def summary_rows(results: Results) -> list[SummaryRow]:
    """From base to trained, in form and in substance, and from the best baselines to trained with what each costs.
    Empty where base and trained cannot be compared."""
    comparison = results.comparison(TRAINED)
    difference = comparison.measures.get(results.primary) if comparison else None
    if comparison is None or difference is None or difference.low is None:
        return []
    title, gain = BY_NAME[results.primary].short, comparison.gain
    rows = [_row(f"{title}: base \u2192 trained", difference, with_p=True)]
    if gain.form.mean or gain.enforced is not None:
        rows.append(_row(BY_NAME[answered_measure(results.primary)].short, gain.form))
        rows.append(_row(f"{title} where both answered", gain.substance))
    if gain.enforced is not None:
        rows.append(_row(f"{title} with the form enforced", gain.enforced))
    if results.selection is not None:
        rows.append(_row(f"{title}: random selection \u2192 trained", results.selection))
    for best, kind in ((results.trained_baseline, ", trained itself,"), (results.best_baseline, ", untrained")):
        if best is not None and best.difference.mean is not None:
            rows += _baseline_rows(best, f"{best.name}{kind}", title)
    return [row for row in rows if row["before"] or row["difference"] != "–"]


def summary_notes(results: Results) -> list[str]:
    """What a reader of these numbers must know."""
    notes, best, floor = [], results.best_baseline, results.label_floor
    if floor is not None and strict_form(results.primary) == "accuracy":
        notes.append(
            f"Always answering {floor.commonest} scores {floor.accuracy:.2f}, and labels drawn at random "
            f"{floor.chance:.2f}."
        )
    if best is not None and best.candidates > 1:
        notes.append(
            f"{best.name[:1].upper()}{best.name[1:]} is the best of {best.candidates} untrained baselines on these "
            "questions; on others it may do less well."
        )
    return notes


def _baseline_rows(best: BaselineComparison, name: str, title: str) -> list[SummaryRow]:
    rows = [_row(f"{title}: {name} \u2192 trained", best.difference, with_p=True)]
    calls = best.costs.get("calls")
    tokens = [pair for cost, pair in best.costs.items() if cost != "calls"]
    if calls is not None:
        rows.append(_costs("Model calls a question", f"{calls.baseline:.1f}", f"{calls.trained:.1f}"))
    if tokens:
        before, after = sum(pair.baseline for pair in tokens), sum(pair.trained for pair in tokens)
        rows.append(_costs("Tokens a question", f"{before:,.0f}", f"{after:,.0f}"))
    return rows


def _costs(title: str, before: str, after: str) -> SummaryRow:
    return SummaryRow(title=title, before=before, after=after, difference="", interval="", p="")


def _row(title: str, change: Difference, with_p: bool = False) -> SummaryRow:
    return SummaryRow(
        title=f"{title}, {change.n} questions" if with_p or "both" in title else title,
        before="" if change.before is None else number(change.before, 2),
        after="" if change.after is None else number(change.after, 2),
        difference=number(change.mean, 2, sign=True),
        interval=interval(change, 2),
        p=format_p_value(change) if with_p else "",
    )
