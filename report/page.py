"""The page of a round: one HTML file that needs no network and runs no text of a document or a model.

Jinja escapes every value; data for the script is compressed, in letters and digits that cannot close its element; and
the page's own policy allows exactly one script, by its hash, and no request to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ratchet.core.config import Config
from ratchet.core.plugins import short_name
from ratchet.evaluation.formats import SECTIONS, format_p_value, paired_count, paired_estimate, shown_measures
from ratchet.evaluation.headline import changes_sentence, verdict
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.measures.measures import BY_NAME, answered_measure, strict_form
from ratchet.evaluation.results import BASE, BASE_AGAIN, TRAINED, BaselineComparison, Results
from ratchet.report.gather import Gathered
from ratchet.report.records import Tally
from ratchet.report.rounds import interval, number, rounds_view, tone_of
from ratchet.report.terms import count_outcomes, measure_term, term
from ratchet.report.view import MAX_BYTES, MAX_CHOICES, DetailReader, View, make_view, pack

if TYPE_CHECKING:
    from ratchet.core.plotting import Plot

HERE = Path(__file__).parent
SCRIPTS = ("base.js", "browser.js", "trajectory.js", "selection.js", "live.js")
STATUSES = ("finished", "unparsed", "out_of_budget", "failed")


class Drawings:
    """The plots of a page, drawn again only where what they show was read again."""

    def __init__(self) -> None:
        self._shown: tuple[Any, ...] = ()
        self._plots: list[Plot] = []

    def of(self, gathered: Gathered) -> list[Plot]:
        """The plots of the round."""
        shown = (gathered.results, gathered.training, gathered.rounds)
        if any(shown[:2]) and (
            not self._shown or any(new is not old for new, old in zip(shown, self._shown, strict=True))
        ):
            from ratchet.report.plots import make_plots  # late: the first page of a run that begins needs no matplotlib

            self._shown, self._plots = shown, make_plots(*shown)
        return self._plots


def render(config: Config, gathered: Gathered) -> str:
    """The page as one HTML file that needs nothing else."""
    view = make_view(gathered, DetailReader(config))
    return render_page(config, gathered, view, Drawings())


def render_page(
    config: Config, gathered: Gathered, view: View, drawings: Drawings, state: Mapping[str, Any] | None = None
) -> str:
    """The page with the details of `view`. `state`: what the run is doing (`follow.py`), where the page is served
    and asks for what is new."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    script = read_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {"term": term, "measure_term": measure_term, "number": number, "interval": interval}
    results, selection = gathered.results, gathered.selection
    headline, particulars = _verdict(results)
    return environment.get_template("page.html.j2").render(
        run=config.folder.name,
        round=gathered.folder.number,
        state=state,
        headline=headline,
        particulars=particulars,
        summary=summary_rows(results) if results else [],
        notes=summary_notes(results) if results else [],
        changes=changes_sentence(results.changes(TRAINED), results.changes(BASE_AGAIN)) if results else "",
        difference=_primary(results),
        tone=tone_of(_primary(results), results.primary) if results else "",
        primary_term=measure_term(results.primary, BY_NAME[results.primary].short) if results else "",
        primary=BY_NAME[results.primary].short if results else "",
        results=results,
        groups=_groups(results) if results else [],
        kinds=_kinds(results) if results else [],
        extent=_extent(results) if results else 0.0,
        baselines=_baselines(results) if results else None,
        rounds=rounds_view(gathered.rounds),
        plots=drawings.of(gathered),
        tallies=gathered.tallies,
        statuses=STATUSES,
        errors=_errors(gathered.tallies),
        selection=selection,
        kept_questions=sum(bool(choice.kept) for choice in selection.questions) if selection else 0,
        choices_shown=MAX_CHOICES,
        sections=view.index["sections"],
        left_out=sum(q["chunk"] is None for section in view.index["sections"] for q in section["questions"]),
        undecoded=view.problems,
        max_bytes=MAX_BYTES,
        missing=[line for line in gathered.missing if state is None or not line.startswith("No ")],
        facts=_facts(config, gathered),
        index=pack({**view.index, "live": state is not None}),
        chunks=view.chunks,
        outcomes=count_outcomes(view.index["sections"]),
        script=Markup(script),
        policy=(
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'; "
            "form-action 'none'" + ("; connect-src 'self'" if state is not None else "")
        ),
    )


def read_script() -> str:
    """The page's script: the parts joined into one function, so that none of their names is the window's."""
    parts = "\n".join((HERE / "script" / name).read_text() for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\nbusy(start());\n}})();'


def _verdict(results: Results | None) -> tuple[str, str]:
    """(the page's heading, the sentence below it)."""
    if results is None:
        return "Not evaluated yet", ""
    comparison = results.comparison(TRAINED)
    headline, particulars = verdict(
        comparison,
        results.primary,
        results.best_baseline,
        results.label_floor,
        results.selection,
        results.trained_baseline,
    )
    return headline or ("No verdict" if comparison else "The base model alone"), particulars


def _primary(results: Results | None) -> Difference | None:
    difference = results.difference(TRAINED) if results else None
    return difference if difference and difference.mean is not None else None


def _groups(results: Results) -> list[tuple[str, list[dict[str, Any]]]]:
    shown = [(title, shown_measures(results, group)) for group, title in SECTIONS]
    return [(title, [result_row(results, name) for name in names]) for title, names in shown]


def result_row(results: Results, name: str) -> dict[str, Any]:
    """One measure of the table of results, base against trained."""
    measure = BY_NAME[name]
    base = results.arms[0].measures.get(name)
    arm, difference = results.arm(TRAINED), results.difference(TRAINED, name)
    trained = arm.measures.get(name) if arm else None
    is_over_a_part = measure.form in ("lenient", "words") or name == "parse_rate"
    nulls = [f"{e.nulls} {label}" for label, e in (("base", base), ("trained", trained)) if e and e.nulls]
    is_drawn = measure.group != "cost" and name != "answer_words"
    return {
        "title": measure_term(name),
        "paired": paired_count(difference, base, trained).strip(" ()"),
        "digits": measure.digits,
        "base": paired_estimate(base, difference),
        "trained": paired_estimate(trained, difference, after=True),
        "difference": difference,
        "p": format_p_value(difference),
        "tone": tone_of(difference, name),
        "forest": _forest(difference, _extent(results)) if is_drawn and difference else None,
        "note": f"null: {', '.join(nulls)}" if nulls and not is_over_a_part else "",
    }


def _extent(results: Results) -> float:
    """Half the width of the drawn differences: the farthest bound, rounded up to a tenth."""
    bounds = [
        abs(bound)
        for name in shown_measures(results, "quality", "ending")
        if name != "answer_words" and (difference := results.difference(TRAINED, name)) is not None
        for bound in (difference.low, difference.high)
        if bound is not None
    ]
    return max(0.1, -(-max(bounds, default=1.0) * 10 // 1) / 10)


def _forest(difference: Difference, extent: float) -> tuple[float, float, float] | None:
    """Low, mean and high of the difference in percent of the drawing's width; 50 is no difference."""
    if difference.low is None or difference.high is None or difference.mean is None:
        return None
    low, mean, high = (
        50 + 50 * max(-1.0, min(1.0, value / extent)) for value in (difference.low, difference.mean, difference.high)
    )
    return low, mean, high


def _baselines(results: Results) -> dict[str, Any] | None:
    """By measure, (estimate, difference from base) of every arm beside base and trained."""
    arms = [arm for arm in results.arms if arm.name not in (BASE, TRAINED)]
    if not arms:
        return None
    rows = [
        {
            "title": measure_term(name),
            "digits": BY_NAME[name].digits,
            "cells": [(arm.measures.get(name), results.difference(arm.name, name)) for arm in arms],
        }
        for name in shown_measures(results, "quality", "ending", "cost")
    ]
    return {"names": [arm.name for arm in arms], "rows": rows}


def _kinds(results: Results) -> list[dict[str, Any]]:
    arm, comparison = results.arm(TRAINED), results.comparison(TRAINED)
    rows = []
    for kind, measures in results.arms[0].kinds.items():
        difference = comparison.kinds.get(kind) if comparison else None
        own = arm.kinds.get(kind, {}).get(results.primary) if arm else None
        means = {
            "base": paired_estimate(measures.get(results.primary), difference),
            "trained": paired_estimate(own, difference, after=True),
        }
        rows.append({"kind": kind, **means, "difference": difference})
    return rows


def _errors(tallies: tuple[Tally, ...], max_errors: int = 12) -> list[tuple[Tally, str, str, int]]:
    """(tally, status, error, count), the most frequent of each stage first."""
    return [
        (tally, status, error, count)
        for tally in tallies
        for (status, error), count in tally.errors.most_common(max_errors)
    ]


def _facts(config: Config, gathered: Gathered) -> list[tuple[str, str]]:
    manifest, results = gathered.manifest, gathered.results
    adapter = results.arm(TRAINED) if results else None
    judge = config.models.get(config.rewards.judge)
    weights = config.rewards.weights.items()
    reward = ", ".join(f"{weight:g} × {short_name(name).replace('_', ' ')}" for name, weight in weights)
    return [
        ("Run folder", str(config.folder)),
        ("System", short_name(config.system.name)),
        ("Model", config.models[config.training.model].path),
        ("Judge", judge.path if judge else "none: the scores are rules"),
        ("Reward", f"weighted mean of {reward}"),
        ("Adapter", adapter.policy if adapter else "none evaluated"),
        ("Seed", str(config.seed)),
        ("Token rows", _rows_text(gathered)),
        ("Code", ", ".join(gathered.code) or "unknown"),
        ("Packages", ", ".join(f"{k} {v}" for k, v in (manifest.get("packages") or {}).items()) or "unknown"),
    ]


def _rows_text(gathered: Gathered) -> str:
    """How many rows the kept trajectories are, and why there are more than dialogues."""
    kept = set(gathered.selection.kept) if gathered.selection else set()
    lines = [line for own in gathered.sampled.lines.values() for _, line in own] if gathered.sampled else []
    rewritten = sum(line.rewritten for line in lines if line.trajectory.key in kept)
    if not rewritten:
        return str(gathered.rows)
    return (
        f"{gathered.rows} of {len(kept)} kept trajectories; in these, {rewritten} conversations begin where the chat "
        "template wrote earlier turns in another way, as it drops their thoughts"
    )


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
    if gain.form.mean:
        rows.append(_row(BY_NAME[answered_measure(results.primary)].short, gain.form))
        rows.append(_row(f"{title} where both answered", gain.substance))
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
