"""sweep.html: the tables and the learning curves, as one file that needs no network and runs no script.

Jinja escapes every value, and the page's own policy allows no script and no request. It looks like a run's report: the
style is that room's file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from evaluation.measures.measures import BY_NAME
from evaluation.sweep.records import Curve, Point, SweepResults
from evaluation.sweep.table import COSTS, STAGES, caption, heading, rows_of

HERE = Path(__file__).parent
STYLE = HERE.parents[1] / "report"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 280, 46, 16, 14, 40


@dataclass(frozen=True)
class Mark:
    """A point of a curve, in pixels."""

    x: float
    y: float
    low: float
    high: float
    label: str
    """On the axis; empty for a checkpoint within a round."""
    title: str
    step: bool
    chosen: bool


@dataclass(frozen=True)
class Drawing:
    title: str
    caption: str
    marks: tuple[Mark, ...]
    line: str
    ticks: tuple[tuple[float, str], ...]


def render(results: SweepResults) -> str:
    environment = Environment(
        loader=FileSystemLoader([HERE, STYLE]),
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
        averages=[
            (one.stage, one.system, one.checkpoint, BY_NAME["f1"].digits, one.estimate) for one in results.averages
        ],
        costs=list(COSTS.values()),
        priced=any(cell.price is not None for cell in results.cells),
        drawings=[_drawing(curve, chosen) for curve in results.curves],
        box=(WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM),
        policy=POLICY,
    )


def _drawing(curve: Curve, chosen: set[tuple[str, str]]) -> Drawing:
    """The curve in a box: checkpoints along the rounds, the measure upwards from 0 or what is below it."""
    bounds = [value for point in curve.points for value in _bounds(point)]
    low, high = min(0.0, *bounds), max(0.0, *bounds) or 1.0
    last = max(point.place for point in curve.points) or 1.0

    def x(place: float) -> float:
        return round(LEFT + 20 + (WIDTH - LEFT - RIGHT - 40) * place / last, 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low), 1)

    measure = BY_NAME[curve.measure]
    marks = []
    for point in curve.points:
        mean = point.estimate.mean
        if mean is None:
            continue
        bottom, top = min(_bounds(point)), max(_bounds(point))
        where = "base model" if point.round == 0 else f"round {point.round}"
        if point.step is not None:
            where += f", step {point.step}"
        numbers = f"{mean:.{measure.digits}f} [{bottom:.{measure.digits}f}, {top:.{measure.digits}f}]"
        label = "base" if point.round == 0 else "" if point.step is not None else str(point.round)
        marks.append(
            Mark(
                x(point.place),
                y(mean),
                y(bottom),
                y(top),
                label,
                f"{where}: {numbers}",
                point.step is not None,
                (curve.system, point.checkpoint) in chosen,
            )
        )
    step = (high - low) / 4
    return Drawing(
        title=f"{measure.title} on {curve.split}",
        caption=f"{curve.run}, {curve.system}: over rounds, with the checkpoints within each round's training as small "
        "dots. Bars: 95% intervals. Ringed: chosen on dev.",
        marks=tuple(marks),
        line=" ".join(f"{mark.x},{mark.y}" for mark in marks),
        ticks=tuple((y(low + i * step), f"{low + i * step:.2f}") for i in range(5)),
    )


def _bounds(point: Point) -> list[float]:
    found = point.estimate
    return [value for value in (found.low, found.mean, found.high) if value is not None] or [0.0]
