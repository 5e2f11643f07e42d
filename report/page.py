"""The page of a round: one HTML file that needs no network and runs no text of a document or a model.

Jinja escapes every value; data for the script is compressed, in letters and digits that cannot close its element; and
the page's own policy allows exactly one script, by its hash, and no request to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ratchet.core.config import Config
from ratchet.core.plugins import short_name
from ratchet.core.records import Question, Recall, Search, ToolCall, Trajectory
from ratchet.evaluation.comparisons import CHANGE, ROUNDING
from ratchet.evaluation.formats import (
    SECTIONS,
    format_interval,
    format_number,
    format_p_value,
    kind_rows,
    measure_row,
    shown_measures,
)
from ratchet.evaluation.headline import changes_sentence
from ratchet.evaluation.measures.measures import measure_of
from ratchet.evaluation.results import BASE, BASE_AGAIN, TRAINED, Results
from ratchet.report.gather import Gathered, Section
from ratchet.report.plots import learning_curve, loss_curve, quality_and_cost
from ratchet.report.records import Tally
from ratchet.report.rounds import rounds_view, tone_of
from ratchet.report.terms import count_outcomes, measure_term, term
from ratchet.report.view import (
    MAX_BYTES,
    MAX_CHOICES,
    DetailReader,
    View,
    cut,
    expected_answers,
    make_view,
    pack,
)
from ratchet.rewards.selection import worst_reward
from ratchet.rewards.summary import origin_lines

HERE = Path(__file__).parent
SCRIPTS = ("base.js", "browser.js", "trajectory.js", "selection.js", "live.js")
STATUSES = ("finished", "unparsed", "out_of_budget", "failed")
MAX_STEPS, MAX_TITLES, MAX_TEXT = 4, 3, 300
"""Of an example."""


def render(config: Config, gathered: Gathered) -> str:
    """The page as one HTML file that needs nothing else."""
    view = make_view(gathered, DetailReader(config))
    return render_page(config, gathered, view)


def render_page(config: Config, gathered: Gathered, view: View, state: Mapping[str, Any] | None = None) -> str:
    """The page with the details of `view`. `state`: the run's state (`follow.py`), where the page is served."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    script = read_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {"term": term, "measure_term": measure_term}
    environment.globals |= {"number": format_number, "interval": format_interval}
    results, selection = gathered.results, gathered.selection
    primary = measure_of(results.primary).short if results else ""
    return environment.get_template("page.html.j2").render(
        run=config.folder.name,
        round=gathered.folder.number,
        state=state,
        headline=_headline(results),
        changes=changes_sentence(results.changes(TRAINED), results.changes(BASE_AGAIN)) if results else "",
        primary=primary,
        results=results,
        groups=_groups(results) if results else [],
        kinds=list(kind_rows(results)) if results else [],
        baselines=_baselines(results) if results else None,
        rounds=rounds_view(gathered.rounds),
        figure=[
            plot
            for plot in (results and quality_and_cost(results, gathered.rounds), learning_curve(gathered.rounds))
            if plot
        ],
        summary=_summary(results) if results else [],
        best=results.arm(results.best_baseline.name) if results and results.best_baseline else None,
        examples=make_examples(gathered),
        loss=loss_curve(gathered.training),
        tallies=gathered.tallies,
        statuses=STATUSES,
        errors=_errors(gathered.tallies),
        selection=selection,
        origins="; ".join(origin_lines(selection)) if selection else "",
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


def _headline(results: Results | None) -> str:
    if results is None:
        return "Not evaluated yet"
    return results.headline or ("No verdict" if results.comparison(TRAINED) else "The base model alone")


def _summary(results: Results) -> list[dict[str, Any]]:
    """The rows of the first table: the primary measure, how often there was an answer, what was found, and the cost."""
    found = [name for name in ("answer_recall", "gold_recall") if name in shown_measures(results, "retrieval")]
    names = dict.fromkeys((results.primary, "answered", *found[:1], "calls", "prompt_tokens", "new_tokens"))
    return [result_row(results, name) for name in names]


def _groups(results: Results) -> list[tuple[str, list[dict[str, Any]]]]:
    shown = [(title, shown_measures(results, group)) for group, title in SECTIONS]
    return [(title, [result_row(results, name) for name in names]) for title, names in shown]


def result_row(results: Results, name: str) -> dict[str, Any]:
    """One measure of the table of results, base against trained."""
    measure, row = measure_of(name), measure_row(results, name)
    arms = ("base", row.base), ("trained", row.trained)
    is_over_a_part = measure.form in ("lenient", "words") or name == "parse_rate"
    nulls = [f"{one.nulls} {label}" for label, one in arms if one and one.nulls]
    return {
        "title": measure_term(name),
        "row": row,
        "digits": measure.digits,
        "p": format_p_value(row.difference),
        "tone": tone_of(row.difference, name),
        "note": f"null: {', '.join(nulls)}" if nulls and not is_over_a_part else "",
    }


def _baselines(results: Results) -> dict[str, Any] | None:
    """By measure, (estimate, difference from base) of every arm beside base and trained."""
    arms = [arm for arm in results.arms if arm.name not in (BASE, TRAINED)]
    if not arms:
        return None
    rows = [
        {
            "title": measure_term(name),
            "digits": measure_of(name).digits,
            "cells": [(arm.measures.get(name), results.difference(arm.name, name)) for arm in arms],
        }
        for name in shown_measures(results, "quality", "ending", "cost")
    ]
    return {"names": [arm.name for arm in arms], "rows": rows}


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
    return [
        ("Run folder", str(config.folder)),
        ("System", short_name(config.system.name)),
        ("Model", config.models[config.training.model].path),
        ("Judge", judge.path if judge else "none: the scores are rules"),
        ("Reward", reward_text(config.rewards.weights)),
        ("Adapter", adapter.policy if adapter else "none evaluated"),
        ("Seed", str(config.seed)),
        ("Token rows", _rows_text(gathered)),
        ("Code", ", ".join(gathered.code) or "unknown"),
        ("Packages", ", ".join(f"{k} {v}" for k, v in (manifest.get("packages") or {}).items()) or "unknown"),
    ]


def reward_text(weights: Mapping[str, float]) -> str:
    """'weighted mean of 3 × f1, 1 × em', and with costs '(3 × f1 + 1 × em - 0.2 × model calls) / 4, at least -1'."""
    parts = {f"{abs(weight):g} × {short_name(name).replace('_', ' ')}": weight for name, weight in weights.items()}
    costs = [part for part, weight in parts.items() if weight < 0]
    if not costs:
        return f"weighted mean of {', '.join(parts)}"
    gains = " + ".join(part for part in parts if part not in costs)
    total = sum(weight for weight in weights.values() if weight > 0)
    return f"({' - '.join([gains, *costs])}) / {total:g}, at least {worst_reward(weights):g}"


def _rows_text(gathered: Gathered) -> str:
    """The number of rows of the kept trajectories, and of conversations that gave none, by the reason; with the reason
    where there are more than dialogues."""
    left_out = "".join(f"; skipped: {count} x {reason}" for reason, count in gathered.left_out.items())
    kept = set(gathered.selection.kept) if gathered.selection else set()
    lines = [line for own in gathered.sampled.lines.values() for _, line in own] if gathered.sampled else []
    rewritten = sum(line.rewritten for line in lines if line.trajectory.key in kept)
    if not rewritten:
        return f"{gathered.rows}{left_out}"
    return (
        f"{gathered.rows} of {len(kept)} kept trajectories; in these, {rewritten} conversations begin where the chat "
        f"template wrote earlier turns in another way, as it drops their thoughts{left_out}"
    )


# Three questions that show what training changed: one gained, one still wrong, one broken, each as plain steps


def choose_examples(results: Results, ids: Sequence[str]) -> dict[str, str]:
    """Kind of example to question id: the largest gain, the lowest value that stayed low, the largest loss."""
    base, trained = results.arm(BASE), results.arm(TRAINED)
    if base is None or trained is None:
        return {}
    before, after, large = base.known(results.primary), trained.known(results.primary), CHANGE - ROUNDING
    change = {i: after[i] - before[i] for i in ids if i in before and i in after}
    found = {
        "gained": max((i for i in change if change[i] >= large), key=lambda i: change[i], default=""),
        "still wrong": min((i for i in change if before[i] < large > after[i]), key=lambda i: after[i], default=""),
        "broken": min((i for i in change if change[i] <= -large), key=lambda i: change[i], default=""),
    }
    return {kind: i for kind, i in found.items() if i}


def make_examples(gathered: Gathered) -> list[dict[str, Any]]:
    """An example of each kind that is among the questions on the page. UserError where a record was changed."""
    results, section = gathered.results, gathered.evaluated
    if results is None or section is None:
        return []
    arms = {i: {arm for arm, _ in lines} for i, lines in section.lines.items()}
    questions = {one.id: one for one in section.questions if arms[one.id] >= {BASE, TRAINED}}
    chosen = choose_examples(results, [*questions])
    return [_example(kind, questions[i], results, section) for kind, i in chosen.items()]


def _example(kind: str, question: Question, results: Results, section: Section) -> dict[str, Any]:
    base = _chosen_sample(section, question, BASE, best=kind == "broken")
    trained = _chosen_sample(section, question, TRAINED, best=kind == "gained")
    steps = [*_example_steps(trained, question)]
    return {
        "kind": kind,
        "question": question,
        "before_after": [
            arm.values[question.id][results.primary] for arm in results.arms if arm.name in (BASE, TRAINED)
        ],
        "key": trained.key,
        "steps": steps[:MAX_STEPS],
        "more_steps": len(steps[MAX_STEPS:]),
        "answer": cut(trained.answer, MAX_TEXT),
        "expected": " or ".join(expected_answers(question)),
        "base_answer": cut(base.answer, MAX_TEXT),
    }


def _chosen_sample(section: Section, question: Question, arm: str, best: bool) -> Trajectory:
    """The best or the worst of an arm's samples, by reward."""
    lines = [line for name, line in section.lines[question.id] if name == arm]
    return (max if best else min)(lines, key=lambda line: section.rewards[line.trajectory.key] or 0.0).read()


def _example_steps(trajectory: Trajectory, question: Question) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """What was asked and, for each passage found, its title and whether its document is gold."""
    for event in trajectory.events:
        if isinstance(event, Search | ToolCall | Recall):
            if isinstance(event, Search):
                asked = event.query
            else:
                asked = ", ".join(event.entities if isinstance(event, Recall) else map(str, event.arguments.values()))
            found = event.passages[:MAX_TITLES]
            titles = [
                (cut(passage.title or passage.id, 80), passage.document_id in question.gold_ids) for passage in found
            ]
            yield cut(asked, MAX_TEXT), titles
