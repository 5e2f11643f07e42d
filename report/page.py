"""The page of a round: one HTML file that needs no network and runs no text of a document or a model.

Jinja escapes every value; data for the script is JSON that cannot close its element; and the page's own policy allows
exactly one script, by its hash, and no request to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from evaluation.headline import verdict_parts
from evaluation.measures.measures import BY_NAME
from evaluation.measures.statistics import Difference
from evaluation.measures.verdicts import APART, Verdicts, label_scores
from evaluation.results import BASE, SECTIONS, TRAINED, Arm, Results, format_p_value
from ratchet.config import Config
from ratchet.plotting import Plot
from ratchet.plugins import short_name
from report.gather import Gathered, Tally
from report.ledger import ledger_view
from report.outcomes import count_outcomes
from report.plots import learning_curve, make_plots
from report.rounds import interval, number, rounds_view, tone_of
from report.terms import measure_term, term
from report.view import MAX_BYTES, MAX_CHOICES, make_view

HERE = Path(__file__).parent
SCRIPTS = ("base.js", "browser.js", "trajectory.js", "selection.js", "ledger.js")
STATUSES = ("finished", "unparsed", "out_of_budget", "failed")


@dataclass(frozen=True)
class Row:
    """One measure of the table of results."""

    title: Markup
    base: str
    base_interval: str
    trained: str
    trained_interval: str
    difference: str
    difference_interval: str
    p: str
    tone: str
    """`tone_of` the difference."""
    forest: tuple[float, float, float] | None
    """Low, mean and high of the difference in percent of the drawing's width; 50 is no difference."""
    note: str


def render(config: Config, gathered: Gathered) -> str:
    """The whole page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    script = read_script()
    environment.globals["term"] = term
    view = make_view(gathered, {str(name): weight for name, weight in config.rewards.weights.items()})
    results = gathered.results
    headline, particulars = _verdict(results)
    plots = make_plots(results, gathered.selection, gathered.training)
    selection = gathered.selection
    return environment.get_template("page.html.j2").render(
        run=config.folder.name,
        round=gathered.round,
        headline=headline,
        particulars=particulars,
        difference=_primary(results),
        tone=tone_of(_primary(results), results.primary) if results else "",
        primary_term=measure_term(results.primary, BY_NAME[results.primary].short) if results else "",
        primary=BY_NAME[results.primary].short if results else "",
        results=results,
        groups=_groups(results) if results else [],
        extent=_extent(results) if results else 0.0,
        baselines=_baselines(results) if results else None,
        kinds=_kinds(results) if results else [],
        verdicts=verdict_sets([*([results] if results else []), *gathered.benchmarks]),
        rounds=rounds_view(gathered.rounds),
        curve=_plot_view(curve) if (curve := learning_curve(gathered.rounds)) else None,
        ledger=ledger_view(gathered.ledger),
        plots=[_plot_view(plot) for plot in plots],
        tallies=gathered.tallies,
        statuses=STATUSES,
        errors=_errors(gathered.tallies),
        selection=selection,
        kept_questions=sum(bool(choice.kept) for choice in selection.questions) if selection else 0,
        choices_shown=MAX_CHOICES,
        sections=view.index["sections"],
        listed=sum(len(section["questions"]) for section in view.index["sections"]),
        undecoded=gathered.undecoded,
        max_bytes=MAX_BYTES,
        missing=gathered.missing,
        facts=_facts(config, gathered),
        index=json_for_script(view.index),
        shared=json_for_script(view.shared),
        chunks=[json_for_script(chunk) for chunk in view.chunks],
        outcomes=count_outcomes(view.index["sections"]),
        script=Markup(script),
        policy=(
            f"default-src 'none'; script-src 'sha256-{_sha256(script)}'; style-src 'unsafe-inline'; base-uri 'none'; "
            "form-action 'none'"
        ),
    )


def read_script() -> str:
    """The page's script: the parts joined into one function, so that none of their names is the window's."""
    parts = "\n".join((HERE / "script" / name).read_text() for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\nexplainTerms();\nselectionList();\nledger();\nbrowser();\n}})();'


def json_for_script(value: Any) -> Markup:
    """JSON that is safe inside a script element: no character that HTML or an old JavaScript parser gives a meaning."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _verdict(results: Results | None) -> tuple[str, str]:
    """(the page's heading, the sentence below it)."""
    if results is None:
        return "Not evaluated yet", ""
    comparison = results.comparison(TRAINED)
    headline, particulars = verdict_parts(comparison, results.primary, results.best_baseline, results.label_floor)
    return headline or ("No verdict" if comparison else "The base model alone"), particulars


def _primary(results: Results | None) -> Difference | None:
    comparison = results.comparison(TRAINED) if results else None
    found = comparison.measures.get(results.primary) if results and comparison else None
    return found if found and found.mean is not None else None


def _groups(results: Results) -> list[tuple[str, list[Row]]]:
    return [(title, [_row(results, name) for name in results.shown(group)]) for group, title in SECTIONS]


def _row(results: Results, name: str) -> Row:
    measure = BY_NAME[name]
    base = results.arms[0].measures.get(name)
    arm, comparison = results.arm(TRAINED), results.comparison(TRAINED)
    trained = arm.measures.get(name) if arm else None
    found = comparison.measures.get(name) if comparison else None
    note = ""
    over_a_part = measure.form in ("lenient", "words") or name == "parse_rate"
    if not over_a_part:
        arms = [(arm_name, e.nulls) for arm_name, e in (("base", base), ("trained", trained)) if e and e.nulls]
        note = "null: " + ", ".join(f"{count} {arm_name}" for arm_name, count in arms) if arms else ""
    forest = None
    if measure.group != "cost" and name != "answer_words" and found and found.low is not None:
        forest = _forest(found, _extent(results))
    return Row(
        title=measure_term(name),
        base=number(base.mean if base else None, measure.digits),
        base_interval=interval(base, measure.digits),
        trained=number(trained.mean if trained else None, measure.digits),
        trained_interval=interval(trained, measure.digits),
        difference=number(found.mean if found else None, measure.digits, sign=True),
        difference_interval=interval(found, measure.digits),
        p=format_p_value(found),
        tone=tone_of(found, name),
        forest=forest,
        note=note,
    )


def _extent(results: Results) -> float:
    """Half the width of the drawn differences: the farthest bound, rounded up to a tenth."""
    comparison = results.comparison(TRAINED)
    if comparison is None:
        return 1.0
    bounds = [
        abs(bound)
        for name in results.shown("quality", "ending")
        if name != "answer_words" and (found := comparison.measures.get(name)) is not None
        for bound in (found.low, found.high)
        if bound is not None
    ]
    return max(0.1, -(-max(bounds, default=1.0) * 10 // 1) / 10)


def _forest(found: Difference, extent: float) -> tuple[float, float, float] | None:
    if found.low is None or found.high is None or found.mean is None:
        return None
    low, mean, high = (50 + 50 * max(-1.0, min(1.0, value / extent)) for value in (found.low, found.mean, found.high))
    return low, mean, high


def _baselines(results: Results) -> dict[str, Any] | None:
    arms = [arm for arm in results.arms if arm.name not in (BASE, TRAINED)]
    if not arms:
        return None
    rows = []
    for name in results.shown("quality", "ending", "cost"):
        digits = BY_NAME[name].digits
        cells = []
        for arm in arms:
            comparison = results.comparison(arm.name)
            found = comparison.measures.get(name) if comparison else None
            estimate = arm.measures.get(name)
            cells.append(
                {
                    "mean": number(estimate.mean if estimate else None, digits),
                    "interval": interval(estimate, digits),
                    "difference": number(found.mean if found else None, digits, sign=True),
                    "difference_interval": interval(found, digits),
                }
            )
        rows.append({"title": measure_term(name), "cells": cells})
    return {"names": [arm.name for arm in arms], "rows": rows}


def _kinds(results: Results) -> list[dict[str, Any]]:
    arm, comparison = results.arm(TRAINED), results.comparison(TRAINED)
    rows = []
    for kind, measures in results.arms[0].kinds.items():
        base = measures.get(results.primary)
        trained = arm.kinds.get(kind, {}).get(results.primary) if arm else None
        found = comparison.kinds.get(kind) if comparison else None
        rows.append(
            {
                "kind": kind,
                "n": base.n if base else 0,
                "base": number(base.mean if base else None, 3),
                "base_interval": interval(base, 3),
                "trained": number(trained.mean if trained else None, 3),
                "trained_interval": interval(trained, 3),
                "difference": number(found.mean if found else None, 3, sign=True),
                "difference_interval": interval(found, 3),
            }
        )
    return rows


def verdict_sets(suite: Sequence[Results]) -> list[dict[str, Any]]:
    """Verdicts on labels for the page, by question set and arm; empty where no set has labels."""
    sets = []
    for results in suite:
        arms = [(arm, arm.verdicts) for arm in results.arms if arm.verdicts is not None]
        if arms:
            sets.append(
                {
                    "title": results.title or results.split,
                    "questions": results.questions,
                    "arms": [_verdict_arm(results, arm, verdicts) for arm, verdicts in arms],
                }
            )
    return sets


def _verdict_arm(results: Results, arm: Arm, verdicts: Verdicts) -> dict[str, Any]:
    comparison = results.comparison(arm.name)
    cells = []
    for name in ("accuracy", "macro_f1"):
        found, gain = arm.measures.get(name), comparison.measures.get(name) if comparison else None
        cells.append((number(found.mean if found else None, 3), interval(found, 3)))
        cells.append((number(gain.mean, 3, sign=True), interval(gain, 3)) if gain else ("", ""))
    rows = []
    for i, one in enumerate(label_scores(verdicts)):
        rows.append(
            {
                "label": one.name,
                "place": i,
                "counts": [f"{round(count, 2):g}" for count in verdicts.confusion[i]],
                "questions": f"{round(one.questions, 2):g}",
                "scores": [number(value, 3) for value in (one.precision, one.recall, one.f1)],
            }
        )
    return {
        "name": "trained" if arm.name == TRAINED else arm.name,
        "system": arm.system,
        "cells": cells,
        "labels": verdicts.labels,
        "apart": APART,
        "rows": rows,
    }


def _errors(tallies: tuple[Tally, ...], max_errors: int = 12) -> list[tuple[Tally, str, str, int]]:
    """(tally, status, error, count), the most frequent of each stage first."""
    return [
        (tally, status, error, count)
        for tally in tallies
        for (status, error), count in tally.errors.most_common(max_errors)
    ]


def _plot_view(plot: Plot) -> dict[str, Any]:
    return {"title": plot.title, "caption": plot.caption, "svg": Markup(plot.svg)}


def _facts(config: Config, gathered: Gathered) -> list[tuple[str, str]]:
    manifest, results = gathered.manifest, gathered.results
    adapter = results.arm(TRAINED) if results else None
    agent, judge = config.models[config.training.model].path, config.models.get(config.rewards.judge)
    weights = ", ".join(f"{short_name(name)} {weight:g}" for name, weight in config.rewards.weights.items())
    facts = [
        ("Run folder", str(config.folder)),
        ("System", short_name(config.system.name)),
        ("Model", agent),
        ("Judge", judge.path if judge else "none: the scores are rules"),
        ("Reward", f"weighted mean of {weights}"),
        ("Adapter", adapter.policy if adapter else "none evaluated"),
        ("Seed", str(config.seed)),
        ("Token rows", str(gathered.rows)),
        ("Code", str(manifest.get("code") or "unknown")),
        ("Packages", ", ".join(f"{k} {v}" for k, v in (manifest.get("packages") or {}).items()) or "unknown"),
    ]
    return facts
