"""What tables show of an evaluation: which measures, and numbers as text."""

from __future__ import annotations

from rich.markup import escape

from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.measures import BY_NAME, MATCHES, MEASURES, direction, form_of, strict_form
from ratchet.evaluation.results import Arm, Results

SECTIONS = (
    ("quality", "Answers"),
    ("retrieval", "What was found"),
    ("ending", "How it ended, share"),
    ("cost", "Cost of a question"),
)


def shown_measures(results: Results, *groups: str) -> list[str]:
    """The measures of these groups to show, in display order: those of any arm, optional ones if not empty."""

    def has(arm: Arm, name: str, group: str) -> bool:
        if name in ("recalled", "failed_lookups"):  # few systems have a memory, and few runs an outage
            return name in arm.measures and bool(arm.measures[name].mean)
        strict = arm.measures.get("answered" if name == "returned" else strict_form(name))
        always = name in (*MATCHES, results.primary)
        if (form_of(name) or name == "returned") and not always:  # only where endings make a difference
            return name in arm.measures and strict is not None and arm.measures[name].mean != strict.mean
        return name in arm.measures and (arm.measures[name].n > 0 or not (group == "retrieval" or name in MATCHES))

    names = [measure.name for measure in MEASURES]
    outside = dict.fromkeys(name for arm in results.arms for name in arm.measures if name not in names)
    at = names.index("reward")
    measures = [BY_NAME[name] for name in (*names[:at], *outside, *names[at:])]
    return [m.name for m in measures if m.group in groups and any(has(arm, m.name, m.group) for arm in results.arms)]


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
    return format_number(estimate.mean if estimate else None, BY_NAME[name].digits)


def format_estimate(estimate: Estimate | None, name: str) -> str:
    """'0.412 [0.310, 0.520]' as rich markup, '-' where there is no value."""
    if estimate is None or estimate.mean is None:
        return "-"
    digits = BY_NAME[name].digits
    between = format_interval(estimate, digits)
    return format_number(estimate.mean, digits) + (f" [dim]{escape(between)}[/dim]" if between else "")


def format_difference(difference: Difference | None, name: str) -> str:
    """'+0.33 [0.24, 0.42]', in the colour of `coloured`."""
    if difference is None or difference.mean is None:
        return "-"
    digits = BY_NAME[name].digits
    text = f"{format_number(difference.mean, digits, sign=True)} {escape(format_interval(difference, digits))}".rstrip()
    return coloured(text, difference, name)


def coloured(text: str, difference: Difference, name: str) -> str:
    """A difference's text as markup: green where it is clearly better and red where it is clearly worse, by the p value
    that it has."""
    colour = {"better": "green", "worse": "red", "": ""}[direction(difference, name)]
    return f"[{colour}]{text}[/]" if colour else text


def paired_estimate(estimate: Estimate | None, difference: Difference | None, after: bool = False) -> Estimate | None:
    """An arm's mean; where only some of its questions are paired with those of the other arm, the mean of these, from
    which the difference follows, without an interval. `after`: whether the arm is the second of the difference."""
    if difference is None or difference.mean is None or estimate is None or estimate.n == difference.n:
        return estimate
    return Estimate(mean=difference.after if after else difference.before, n=difference.n, nulls=estimate.nulls)


def paired_count(difference: Difference | None, *estimates: Estimate | None) -> str:
    """' (39)': on how many questions a difference is paired, where that is fewer than a mean is of; else empty."""
    if difference is None or difference.mean is None:
        return ""
    return f" ({difference.n})" if any(e is not None and e.n > difference.n for e in estimates) else ""


def format_p_value(difference: Difference | None) -> str:
    """The p value of a difference, '-' where there is none."""
    return "-" if difference is None or difference.p is None else format_p(difference.p)


def format_p(p: float) -> str:
    """A p value with three digits, '<0.001' below that."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
