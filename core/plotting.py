"""Plots as inline SVG that takes its colours and fonts from the page, so that one drawing reads in light and dark.

The page's style sheet defines the CSS variables --ink, --muted, --rule, --base and --trained (report/style.html.j2).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Placeholder colours that no plot uses otherwise; each is replaced by a CSS variable of the page.
INK, MUTED, RULE, BASE_COLOUR, TRAINED_COLOUR = "#010203", "#010204", "#010205", "#010206", "#010207"
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    BASE_COLOUR: "var(--base)",
    TRAINED_COLOUR: "var(--trained)",
}
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


@dataclass(frozen=True)
class Plot:
    """A plot of the page."""

    title: str
    caption: str
    svg: str


@contextmanager
def plot_style() -> Iterator[None]:
    """The style of all plots, for figures that are drawn inside the context."""
    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(width: float = 5.6) -> tuple[Figure, Axes]:
    """An empty figure, `width` inches wide, and its axes."""
    figure = Figure(figsize=(width, 3.0), layout="constrained")
    return figure, figure.add_subplot()


def add_legend(axes: Axes) -> None:
    """Put the legend above the plot."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0, handlelength=1, handleheight=0.8)


def svg_of(figure: Figure, label: str) -> str:
    """The figure as a deterministic inline `<svg>` string, without XML prologue, metadata and addresses.

    `label` describes it to screen readers.
    """
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": label}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<svg width="[^"]*" height="[^"]*"', f'<svg role="img" aria-label="{label}"', text, count=1)
    text = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", text)
    text = re.sub(r" ?font-family: [^;\"]*;?", "", text)
    for placeholder, variable in _VARIABLES.items():
        text = text.replace(placeholder, variable)
    return text
