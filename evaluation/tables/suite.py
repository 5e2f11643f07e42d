"""Methods side by side: one row per method, for one question set and for all of them together.

Scores are in percent, as in the papers' tables. The average over question sets weighs each set alike, and its interval
resamples questions within their sets. The p value of the trained model is that of the comparison which an evaluation is
for, chosen before any result, and the same in every table; those of all other methods are Holm's over their comparisons
with the base arm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TextIO

from rich.table import Table
from rich.text import Text

from ratchet.core.tables import new_table, print_table, wide_console
from ratchet.evaluation.formats import (
    coloured,
    format_difference,
    format_mean,
    format_number,
    format_p,
    format_p_value,
    paired_count,
    shown_measures,
)
from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.measures import form_of, measure_of, of_outside_reward, strict_form
from ratchet.evaluation.measures.statistics import holm_by, paired, stratified_interval
from ratchet.evaluation.measures.verdicts import MACRO_F1, average_macro_f1
from ratchet.evaluation.results import BASE, BASE_AGAIN, TRAINED, Arm, Results
from ratchet.questions.leakage import SplitLeakage

COSTS = {
    "answer_words": "answer\nwords",
    "calls": "calls",
    "searches": "searches",
    "tool_calls": "tool\ncalls",
    "failed_lookups": "failed\ncalls",
    "recalled": "re-\ncalled",
    "prompt_tokens": "tokens\nin",
    "new_tokens": "tokens\nout",
    "seconds": "s",
}
CAPTION = """\
mean [95% bootstrap interval over questions; none where all are equal]
p: paired sign-flip test, with Holm's correction except for the trained model
(number): a difference on so many questions, those on which both have a value
answer found: some retrieved passage holds an answer
parsed: actions neither out of form nor cut off"""
LABELLED = """\
mean [95% bootstrap interval over questions; none where all are equal]
p: paired sign-flip test of accuracy, with Holm's correction except for the
trained model; a trajectory without a verdict is wrong
macro-F1: scikit-learn's, over the labels that are gold of some question; no
verdict is a label of its own
tool calls: searches too; parsed: actions neither out of form nor cut off"""
MEMBERS = """\
means over n questions; difference with its 95% bootstrap interval, paired by
question; p: paired sign-flip test, not corrected for the number of rows"""


def print_suite(suite: Sequence[Results], out: TextIO | None = None) -> None:
    """Print a table for each question set, then one over all of them where there are several."""
    tests = {
        (number, arm.name): difference
        for number, results in enumerate(suite)
        for arm in results.arms
        if (difference := results.difference(arm.name)) is not None and arm.name != BASE_AGAIN
    }
    trained = {at: difference.p for at, difference in tests.items() if at[1] == TRAINED and difference.p is not None}
    adjusted = trained | holm_by({at: difference for at, difference in tests.items() if at[1] != TRAINED})
    for number, results in enumerate(suite):
        print_table(_method_table(results, {name: p for (at, name), p in adjusted.items() if at == number}), out)
    for primary in dict.fromkeys(results.primary for results in suite):
        alike = [results for results in suite if results.primary == primary]
        if len(alike) > 1:
            every = "All question sets" if len(alike) == len(suite) else f"All question sets with {_short(primary)}"
            print_table(average_table(alike, every), out)


def _unit(results: Results) -> str:
    return "as returned, in percent" if form_of(results.primary) else "in percent"


def _labelled(results: Results) -> bool:
    return strict_form(results.primary) == "accuracy"


def _method_table(results: Results, adjusted: Mapping[str, float]) -> Table:
    """One question set, one row per arm. `adjusted`: the p values of the arms that have one."""
    quality = _quality(results)
    title = f"{results.title}: {results.questions} questions, {results.samples} sample(s) each, {_unit(results)}"
    costs = _costs([results])
    headings = [*map(_short, quality), f"{_short(results.primary)} - base", "p"]
    headings += ["macro-F1 - base" if _labelled(results) else "answer\nfound", *costs.values(), "finished", "parsed"]
    table = new_table(title, ["method"], headings, LABELLED if _labelled(results) else CAPTION)
    for arm in results.arms:
        difference = results.difference(arm.name)
        p, macro_f1 = adjusted.get(arm.name), f"macro_f1{form_of(results.primary)}"
        own_f1 = results.difference(arm.name, macro_f1)
        table.add_row(
            label(arm),
            *(percent(arm.measures.get(name)) for name in quality),
            _signed(difference, results.primary, p) + paired_count(difference, arm.measures.get(results.primary)),
            "" if p is None else format_p(p),
            _signed(own_f1, macro_f1, own_f1.p if own_f1 else None)
            if _labelled(results)
            else percent(arm.measures.get("answer_recall"), interval=False),
            *(format_mean(arm.measures.get(name), name) for name in costs),
            percent(arm.measures.get("finished"), interval=False),
            percent(arm.measures.get("parse_rate"), interval=False),
        )
    return table


def average_table(suite: Sequence[Results], title: str = "All question sets") -> Table:
    """Every method on every question set, and their average."""
    quality = _quality(suite[0])
    costs = _costs(suite)
    headings = [*(results.title for results in suite), *(f"average {_short(name)}" for name in quality)]
    headings += [f"{_short(suite[0].primary)} - base", *costs.values()]
    table = new_table(f"{title}: {' / '.join(map(_short, quality))}, {_unit(suite[0])}", ["method"], headings)
    base = [results.arms[0] for results in suite]
    for name in [arm.name for arm in suite[0].arms]:
        arms = [arm for results in suite if (arm := results.arm(name)) is not None]
        if len(arms) < len(suite):
            continue
        gain = "" if name == BASE else percent(mean_gain(base, arms, suite[0]), signed=True)
        table.add_row(
            label(arms[0]),
            *(" / ".join(percent(arm.measures.get(n), interval=False) for n in quality) for arm in arms),
            *(percent(_average(arms, n, suite[0])) for n in quality),
            gain,
            *(mean_cost(arms, n) for n in costs),
        )
    return table


def _quality(results: Results) -> list[str]:
    """The quality measures to show, in the primary one's form: EM and F1 for short answers, accuracy and macro-F1 for
    labels, F1 and the computed scores of the judge for long answers; and those of rewards from outside our tree."""
    form = form_of(results.primary)
    own = [name + form for name in shown_measures(results, "quality") if of_outside_reward(name) and not form_of(name)]
    if _labelled(results):
        return [results.primary, f"macro_f1{form}", *own]
    judged = [name + form for name in ("correctness", "precision", "faithfulness") if name in results.arms[0].measures]
    short = [f"em{form}", f"f1{form}"]
    if strict_form(results.primary) == "f1":
        return [*short, *own]
    if strict_form(results.primary) == "correctness":
        return [*judged, short[1], *own]
    return list(dict.fromkeys([results.primary, *judged, *own]))


def _costs(suite: Sequence[Results]) -> dict[str, str]:
    """By measure, its heading: for labels tool calls, which include searches, where they are others; recalls only where
    a system has a memory, and failed calls where there are some; the length of answers beside nugget correctness, which
    longer answers raise."""
    shown = {name for results in suite for name in shown_measures(results, "cost")}
    left_out = {"searches"} if _labelled(suite[0]) and "tool_calls" in shown else {"tool_calls"}
    if strict_form(suite[0].primary) != "correctness":
        left_out.add("answer_words")
    left_out |= {"recalled", "failed_lookups"} - shown
    return {name: heading for name, heading in COSTS.items() if name not in left_out}


def label(arm: Arm) -> str:
    """The arm's name; the base arm and the trained one with their system's."""
    return f"{arm.system} ({arm.name})" if arm.name in (BASE, TRAINED) else arm.name


def percent(estimate: Estimate | Difference | None, interval: bool = True, signed: bool = False) -> str:
    """'41.2 [31.0, 52.0]', '-' where there is no value."""
    if estimate is None or estimate.mean is None:
        return "-"
    mean = f"{round(100 * estimate.mean, 1) + 0.0:{'+' if signed else ''}.1f}"  # + 0.0: no minus sign on a rounded zero
    if not interval or estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return mean
    return f"{mean} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def _signed(difference: Difference | None, name: str, p: float | None) -> Text:
    """A difference, in the colour that it has by this p value."""
    if difference is None or difference.mean is None:
        return Text()
    return coloured(percent(difference, signed=True), difference.model_copy(update={"p": p}), name)


def _average(arms: Sequence[Arm], name: str, first: Results) -> Estimate | None:
    """The mean over question sets of an arm's mean over questions."""
    if name in MACRO_F1:
        sets = [arm.verdicts for arm in arms if arm.verdicts is not None]
        return average_macro_f1(sets, first.seed, name) if len(sets) == len(arms) else None
    return _stratified([[v for v in arm.by_question(name).values() if v is not None] for arm in arms], first)


def mean_gain(base: Sequence[Arm], arms: Sequence[Arm], first: Results) -> Estimate | None:
    """The mean over question sets of an arm's mean difference from base."""
    pairs = [
        paired(own.by_question(first.primary), arm.by_question(first.primary))
        for own, arm in zip(base, arms, strict=True)
    ]
    return _stratified([[y - x for x, y in zip(*pair, strict=True)] for pair in pairs], first)


def _stratified(groups: Sequence[Sequence[float]], first: Results) -> Estimate | None:
    return stratified_interval(groups, first.seed) if all(groups) else None


def mean_cost(arms: Sequence[Arm], *names: str) -> str:
    """The mean over arms of what a question costs, where there are several costs their sum."""
    known = [[e.mean for name in names if (e := arm.measures.get(name)) and e.mean is not None] for arm in arms]
    sums = [sum(means) for means in known if means]
    return format_number(fmean(sums) if sums else None, measure_of(names[0]).digits)


def _short(name: str) -> str:
    return measure_of(name).heading


def print_members(members: Sequence[tuple[str, Results]], out: TextIO | None = None) -> None:
    """Print a row for the results of each (member, question set), all of them with the shared adapter."""
    gains = [results.difference(TRAINED) or Difference(n=0) for _, results in members]
    texts, numbers = ("member", "system", "questions", "measure"), ("n", "base", "adapter", "difference", "p")
    title = f"One adapter, {len(dict(members))} systems"
    table = new_table(title, texts, numbers, MEMBERS, (0, 1))
    for (name, results), gain in zip(members, gains, strict=True):
        table.add_row(
            name,
            results.arms[0].system,
            results.title,
            measure_of(results.primary).short,
            str(gain.n),
            format_number(gain.before, 3),
            format_number(gain.after, 3),
            format_difference(gain, results.primary),
            format_p_value(gain),
        )
    print_table(table, out)


def print_leaks(overlaps: Sequence[SplitLeakage], out: TextIO | None = None) -> None:
    """Print how many questions every two splits share, and which."""
    counted = ("questions", "also there", "sharing a gold document")
    table = new_table("", ("of", "in"), counted)
    for overlap in overlaps:
        leaks = overlap.leaks
        counts = (len(leaks.questions), len(leaks.documents))
        shown = (Text(str(count), "red" if count else "") for count in counts)
        table.add_row(overlap.second, overlap.first, str(overlap.count), *shown)
    print_table(table, out)
    console = wide_console(160, out)
    for overlap in overlaps:
        for line in overlap.shown(overlap.leaks.questions):
            console.print(line, markup=False)
