"""sweep.html: the tables and the learning curves, as one file that needs no network and runs no script.

Jinja escapes every value, and the page's own policy allows no script and no request. The page uses the style sheet
and the plot style of a run's report.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from evaluation.measures.estimates import Estimate
from evaluation.measures.measures import BY_NAME
from evaluation.sweep.checkpoints import Checkpoint
from evaluation.sweep.records import SetFacts, SweepResults
from evaluation.sweep.table import COSTS, STAGES, caption, heading, rows_of, untrained_sentences

if TYPE_CHECKING:
    from ratchet.plotting import Plot

HERE = Path(__file__).parent
REPORT = HERE.parents[1] / "report"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render(results: SweepResults) -> str:
    """The page as text."""
    environment = Environment(
        loader=FileSystemLoader([HERE, REPORT]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    stages = []
    for stage, title in STAGES.items():
        rows = rows_of(results, stage)
        if rows:
            groups = [(heading(results, name), of_set) for name, of_set in rows.items()]
            stages.append({"title": title, "caption": caption(results, stage), "groups": groups, "id": stage})
    return environment.get_template("sweep.html.j2").render(
        results=results,
        stages=stages,
        untrained=untrained_sentences(results),
        costs=list(COSTS.values()),
        plots=[_draw(results, curve, number) for number, curve in enumerate(_curves(results))],
        policy=POLICY,
    )


@dataclass(frozen=True)
class _Curve:
    """A measure over the checkpoints of one run, in the order of their training; the base model is the first."""

    run: str
    system: str
    asked: SetFacts
    points: list[tuple[Checkpoint, Estimate]]


def _curves(results: SweepResults) -> Iterator[_Curve]:
    arms = {(cell.checkpoint, cell.system, cell.split): cell.arm for cell in results.cells}
    dev = [facts for facts in results.sets if facts.stage == "dev"]
    runs = dict.fromkeys(checkpoint.run for checkpoint in results.checkpoints if checkpoint.run)
    for run, system, asked in product(runs, results.systems, dev):
        points = [
            (checkpoint, arm.measures[asked.measure])
            for checkpoint in sorted(results.checkpoints, key=lambda checkpoint: checkpoint.place)
            if (checkpoint.run == run or checkpoint.adapter is None)
            and (arm := arms.get((checkpoint.name, system, asked.name))) is not None
        ]
        if len(points) > 1:
            yield _Curve(run, system, asked, points)


def _draw(results: SweepResults, curve: _Curve, number: int) -> Plot:
    """The curve as SVG: checkpoints along the rounds, the measure upwards from 0 or from its lowest bound below 0.

    The page does not escape SVG, so no name of the sweep may enter it.
    """
    from ratchet.plotting import INK, TRAINED_COLOUR, Plot, new_figure, plot_style, svg_of

    chosen = {(choice.system, choice.checkpoint) for choice in results.choices}
    measure = BY_NAME[curve.asked.measure]
    known = [(point, estimate, mean) for point, estimate in curve.points if (mean := estimate.mean) is not None]
    with plot_style():
        figure, axes = new_figure()
        places, means = [point.place for point, _, _ in known], [mean for _, _, mean in known]
        axes.plot(places, means, color=TRAINED_COLOUR, linewidth=2)
        for point, estimate, mean in known:
            low, high = (mean if bound is None else bound for bound in (estimate.low, estimate.high))
            axes.vlines(point.place, low, high, color=TRAINED_COLOUR, linewidth=1.2, alpha=0.6)
            size = 9 if point.step is None else 5
            axes.plot([point.place], [mean], "o", color=TRAINED_COLOUR, markersize=size)
            axes.annotate(f"{mean:.{measure.digits}f}", (point.place, mean), (9, 4), textcoords="offset points")
            if (curve.system, point.name) in chosen:
                axes.plot([point.place], [mean], "o", markersize=16, mfc="none", mec=INK, clip_on=False)
        rounds = [point for point, _, _ in known if point.step is None]
        labels = ["base" if point.round == 0 else str(point.round) for point in rounds]
        axes.set(xlabel="round", xticks=[point.place for point in rounds], xticklabels=labels)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        svg = svg_of(figure, f"{measure.title} by round", f"curve-{number}")
    return Plot(
        title=f"{measure.title} on {curve.asked.name}",
        caption=f"{curve.run}, {curve.system}: over rounds, with the checkpoints within each round's training as small "
        "dots. Bars: 95% intervals. Ringed: chosen on dev.",
        svg=svg,
    )
