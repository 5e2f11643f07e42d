"""python -m evaluation costs: model calls against searches of every method, from stored results.

AwE's figure 3 (docs/papers/awe.md) plots retrieval rounds against model calls per question. Each method is a point with
its name and its primary measure; both counts are means over the questions, early exits included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from evaluation.measures.measures import BY_NAME, form_of, strict_form
from evaluation.results import BASE, TRAINED, Results
from ratchet.errors import UserError
from ratchet.files import disk_error
from ratchet.tables import print_table

FORMATS = (".svg", ".png", ".pdf")


@dataclass(frozen=True)
class CostPoint:
    """One method in the plane of its costs."""

    name: str
    calls: float
    searches: float
    quality: float | None
    """The mean of the results' primary measure, or of exact match where answers are short."""


def cost_points(results: Results) -> list[CostPoint]:
    """The arms with their mean costs, in the table's order."""
    found = []
    for arm in results.arms:
        calls, searches = arm.measures["calls"].mean, arm.measures["searches"].mean
        if calls is None or searches is None:
            continue
        name = f"{arm.system} ({arm.name})" if arm.name in (BASE, TRAINED) else arm.name
        quality = arm.measures.get(shown_measure(results))
        found.append(CostPoint(name, calls, searches, quality.mean if quality else None))
    return found


def shown_measure(results: Results) -> str:
    """The measure beside the costs: exact match, which the paper gives, of short answers; else the primary one."""
    return f"em{form_of(results.primary)}" if strict_form(results.primary) == "f1" else results.primary


def print_costs(results: Results, out: Path) -> None:
    """Print the points, and draw them into the file `out`. Raises UserError for a format that cannot be drawn."""
    if out.suffix not in FORMATS:
        raise UserError(f"--out {out}: is drawn as one of {', '.join(FORMATS)}; name a file that ends so")
    points, measure = cost_points(results), BY_NAME[shown_measure(results)]
    table = Table(title=f"{escape(results.title)}: costs of a question, {results.questions} questions")
    for heading in ("method", "model calls", "searches", measure.short):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for point in points:
        quality = "-" if point.quality is None else f"{100 * point.quality:.1f}%"
        table.add_row(escape(point.name), f"{point.calls:.1f}", f"{point.searches:.1f}", quality)
    print_table(table)
    _draw(points, f"{results.title}, {results.questions} questions", measure.short, out)
    print(f"written to {out}")


def _draw(points: Sequence[CostPoint], title: str, measure: str, out: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    numbers: dict[tuple[float, float], list[str]] = {}  # methods that cost the same share a point
    for number, point in enumerate(points, 1):
        quality = "" if point.quality is None else f" {100 * point.quality:.1f}"
        axes.plot([point.calls], [point.searches], "o", markersize=7, label=f"{number}  {point.name}{quality}")
        numbers.setdefault((round(point.calls, 1), round(point.searches, 1)), []).append(str(number))
    for place, found in numbers.items():
        axes.annotate(", ".join(found), place, (5, 5), textcoords="offset points", size=9)
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, frameon=False, fontsize=8)
    axes.set(xlabel="model calls per question", ylabel="searches per question", title=f"{title} ({measure}, %)")
    axes.margins(0.12)
    axes.grid(alpha=0.3)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Names as text, and the same bytes from the same results.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "costs"}):
            figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
    except OSError as error:
        raise disk_error(out, error) from error
