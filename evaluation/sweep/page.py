"""sweep.html: the tables and the learning curves, as one file that needs no network and runs no script.

Jinja escapes every value, and the page's own policy allows no script and no request. The page uses the style sheet
and the plot style of a run's report.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from evaluation.measures.measures import BY_NAME
from evaluation.sweep.records import Curve, SweepResults
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
    chosen = {(choice.system, choice.checkpoint) for choice in results.choices}
    stages = []
    for stage, title in STAGES.items():
        rows = rows_of(results, stage)
        if rows:
            groups = [(heading(results, name), found) for name, found in rows.items()]
            stages.append({"title": title, "caption": caption(results, stage), "groups": groups, "id": stage})
    return environment.get_template("sweep.html.j2").render(
        results=results,
        stages=stages,
        untrained=untrained_sentences(results),
        costs=list(COSTS.values()),
        priced=any(cell.price is not None for cell in results.cells),
        plots=[_draw(curve, chosen, number) for number, curve in enumerate(results.curves)],
        policy=POLICY,
    )


def _draw(curve: Curve, chosen: set[tuple[str, str]], number: int) -> Plot:
    """The curve as SVG: checkpoints along the rounds, the measure upwards from 0 or from its lowest bound below 0.

    The page does not escape SVG, so no name of the sweep may enter it.
    """
    from ratchet.plotting import INK, TRAINED_COLOUR, Plot, new_figure, plot_style, svg_of

    measure = BY_NAME[curve.measure]
    known = [(point, mean) for point in curve.points if (mean := point.estimate.mean) is not None]
    with plot_style():
        figure, axes = new_figure()
        axes.plot([point.place for point, _ in known], [mean for _, mean in known], color=TRAINED_COLOUR, linewidth=2)
        tooltips, bottom = [], 0.0
        for at, (point, mean) in enumerate(known):
            low = mean if point.estimate.low is None else point.estimate.low
            high = mean if point.estimate.high is None else point.estimate.high
            bottom = min(bottom, low)
            axes.vlines(point.place, low, high, color=TRAINED_COLOUR, linewidth=1.2, alpha=0.6)
            size = 9 if point.step is None else 5
            axes.plot([point.place], [mean], "o", color=TRAINED_COLOUR, markersize=size, gid=f"point-{at}")
            if (curve.system, point.checkpoint) in chosen:
                axes.plot(
                    [point.place],
                    [mean],
                    "o",
                    markersize=16,
                    markerfacecolor="none",
                    markeredgecolor=INK,
                    clip_on=False,
                )
            where = "base model" if point.round == 0 else f"round {point.round}"
            where += "" if point.step is None else f", step {point.step}"
            tooltips.append(f"{where}: {mean:.{measure.digits}f} [{low:.{measure.digits}f}, {high:.{measure.digits}f}]")
        rounds = [point for point, _ in known if point.step is None]
        labels = ["base" if point.round == 0 else str(point.round) for point in rounds]
        axes.set(xlabel="round", xticks=[point.place for point in rounds], xticklabels=labels)
        axes.set_ylim(bottom=bottom)
        svg = svg_of(figure, f"{measure.title} by round", f"curve-{number}")
    for at, tooltip in enumerate(tooltips):
        svg = svg.replace(f'<g id="point-{at}">', f"<g><title>{tooltip}</title>")
    return Plot(
        title=f"{measure.title} on {curve.split}",
        caption=f"{curve.run}, {curve.system}: over rounds, with the checkpoints within each round's training as small "
        "dots. Bars: 95% intervals. Ringed: chosen on dev.",
        svg=svg,
    )
