"""The formats of tables, pages and cards of an evaluation: the measures shown, their rows, and numbers as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.text import Text

from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.measures import (
    MATCHES,
    Measure,
    direction,
    form_of,
    in_order,
    measure_of,
    strict_form,
)
from ratchet.evaluation.results import TRAINED, Arm, Results

SECTIONS = (
    ("quality", "Answers"),
    ("retrieval", "What was found"),
    ("ending", "How it ended, share"),
    ("cost", "Cost of a question"),
)


def shown_measures(results: Results, *groups: str) -> list[str]:
    """The measures of these groups to show, in display order: those of any arm, optional ones if not empty."""

    def has(arm: Arm, measure: Measure) -> bool:
        name, estimate = measure.name, arm.measures.get(measure.name)
        if estimate is None:
            return False
        if name in ("recalled", "failed_lookups"):  # few systems have a memory, and few runs an outage
            return bool(estimate.mean)
        if name == "tool_calls":  # without other tools they are the searches
            searches = arm.measures.get("searches")
            return searches is None or estimate.mean != searches.mean
        if (form_of(name) or name == "returned") and name != results.primary:  # only where endings make a difference
            strict = arm.measures.get("answered" if name == "returned" else strict_form(name))
            return strict is not None and estimate.mean != strict.mean
        return estimate.n > 0 or not (measure.group == "retrieval" or strict_form(name) in MATCHES)

    measures = map(measure_of, in_order(dict.fromkeys(name for arm in results.arms for name in arm.measures)))
    return [m.name for m in measures if m.group in groups and any(has(arm, m) for arm in results.arms)]


class Row(NamedTuple):
    """Base against trained in one measure, or in the primary one on one kind of question. Where only some questions
    are paired, both means are theirs, so that the difference follows from them."""

    name: str
    """The measure's name, or the kind's."""
    base: Estimate | None
    trained: Estimate | None
    difference: Difference | None
    paired: int | None
    """The number of questions that the difference is paired on, where that is fewer than a mean is of."""


def measure_row(results: Results, name: str) -> Row:
    """The row of a measure."""
    arm = results.arm(TRAINED)
    trained = arm.measures.get(name) if arm else None
    return _row(name, results.arms[0].measures.get(name), trained, results.difference(TRAINED, name))


def kind_rows(results: Results) -> Iterator[Row]:
    """A row for each kind of question."""
    arm, comparison, primary = results.arm(TRAINED), results.comparison(TRAINED), results.primary
    for kind, measures in results.arms[0].kinds.items():
        trained = arm.kinds.get(kind, {}).get(primary) if arm else None
        yield _row(kind, measures.get(primary), trained, comparison.kinds.get(kind) if comparison else None)


def _row(name: str, base: Estimate | None, trained: Estimate | None, difference: Difference | None) -> Row:
    if difference is None or difference.mean is None:
        return Row(name, base, trained, difference, None)

    def paired(estimate: Estimate | None, mean: float | None) -> Estimate | None:
        if estimate is None or estimate.n == difference.n:
            return estimate
        return Estimate(mean=mean, n=difference.n, nulls=estimate.nulls)

    is_part = any(one is not None and one.n > difference.n for one in (base, trained))
    pair = paired(base, difference.before), paired(trained, difference.after)
    return Row(name, *pair, difference, difference.n if is_part else None)


def paired_count(difference: Difference | None, estimate: Estimate | None) -> str:
    """' (39)': on how many questions a difference is paired, where that is fewer than a mean is of; else empty."""
    if difference is None or difference.mean is None or estimate is None or estimate.n <= difference.n:
        return ""
    return f" ({difference.n})"


def format_number(value: float | None, digits: int, sign: bool = False) -> str:
    """A number with this many digits, '-' for None."""
    if value is None:
        return "-"
    value = round(value, digits) + 0.0  # no minus sign on a rounded zero
    return f"{value:{'+' if sign else ''}.{digits}f}"


def format_interval(estimate: Estimate | Difference, digits: int) -> str:
    """'[0.310, 0.520]'; empty where there is none, or all values were equal."""
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return ""
    return f"[{format_number(estimate.low, digits)}, {format_number(estimate.high, digits)}]"


def format_mean(estimate: Estimate | None, name: str) -> str:
    """The mean with the measure's digits, '-' where there is none."""
    return format_number(estimate.mean if estimate else None, measure_of(name).digits)


def format_estimate(estimate: Estimate | Difference | None, name: str) -> str:
    """'0.412 [0.310, 0.520]', with a sign for a difference; '-' where there is no value."""
    if estimate is None or estimate.mean is None:
        return "-"
    digits = measure_of(name).digits
    mean = format_number(estimate.mean, digits, sign=isinstance(estimate, Difference))
    return f"{mean} {format_interval(estimate, digits)}".rstrip()


def format_difference(difference: Difference | None, name: str) -> Text:
    """'+0.33 [0.24, 0.42]', in the colour of `coloured`."""
    return coloured(format_estimate(difference, name), difference, name)


def coloured(text: str, difference: Difference | None, name: str) -> Text:
    """A difference's text: green where it is clearly better and red where it is clearly worse, by its p value."""
    return Text(text, {"better": "green", "worse": "red", "": ""}[direction(difference, name)])


def format_p_value(difference: Difference | None) -> str:
    """The p value of a difference, '-' where there is none."""
    return "-" if difference is None or difference.p is None else format_p(difference.p)


def format_p(p: float) -> str:
    """A p value with three digits, '<0.001' below that."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
