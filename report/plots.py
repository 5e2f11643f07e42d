"""Plots as inline SVG that takes its colours and fonts from the page, so that one drawing reads in light and dark.

The page's style sheet defines the CSS variables --ink, --muted, --rule, --base and --trained (report/style.html.j2).
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ratchet.evaluation.measures.measures import measure_of
from ratchet.evaluation.results import BASE, TRAINED, Results
from ratchet.report.records import LogLine
from ratchet.report.rounds import RoundNumbers

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


def new_figure() -> tuple[Figure, Axes]:
    """An empty figure and its axes."""
    figure = Figure(figsize=(5.6, 3.0), layout="constrained")
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


def make_plots(results: Results | None, training: Sequence[LogLine], rounds: Sequence[RoundNumbers] = ()) -> list[Plot]:
    """The plots for which there are records, results first."""
    with matplotlib.rc_context(_STYLE):
        plots = [
            held_out(results) if results else None,
            learning_curve(rounds),
            loss_curve(training),
        ]
    return [plot for plot in plots if plot is not None]


def held_out(results: Results) -> Plot | None:
    """Per-question values of base and trained, as paired bars: reward when it is there, else the primary measure."""
    base, trained = results.arm(BASE), results.arm(TRAINED)
    name = "reward" if base is not None and "reward" in base.measures else results.primary
    shown = [
        (label, colour, [v for values in arm.values.values() if (v := values.get(name)) is not None])
        for label, colour, arm in (("base", BASE_COLOUR, base), ("trained", TRAINED_COLOUR, trained))
        if arm is not None
    ]
    shown = [item for item in shown if item[2]]
    if not shown:
        return None
    figure, axes = new_figure()
    edges = np.linspace(0, 1, 11)
    width = 0.1 * 0.84 / len(shown)
    for i, (label, colour, values) in enumerate(shown):
        share = np.histogram(np.clip(values, 0, 1), edges)[0] / len(values)
        at = edges[:-1] + 0.008 + width * (i + 0.5)
        axes.bar(at, share, width, color=colour, label=f"{label}, mean {np.mean(values):.2f}")
        axes.axvline(float(np.mean(values)), color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.set(xlim=(0, 1), xlabel=_title(name), ylabel="share of questions")
    add_legend(axes)
    return Plot(
        "Before and after",
        f"{_title(name)} of each of the {results.questions} held-out questions ({results.split}). Dashed: the means.",
        svg_of(figure, f"{_title(name)} by question, base and trained"),
    )


def learning_curve(rounds: Sequence[RoundNumbers]) -> Plot | None:
    """The measure of promotion, round by round; None for fewer than two rounds that have it."""
    means = [(n, after, after.mean) for n in rounds if (after := n.measure(TRAINED)) and after.mean is not None]
    if len(means) < 2:
        return None
    figure, axes = new_figure()
    first, base = means[0][0].promotion, means[-1][0].measure(BASE)
    assert first is not None
    if base and base.mean is not None:
        axes.axhline(base.mean, color=BASE_COLOUR, linewidth=1.2, linestyle=(0, (4, 3)))
    for numbers, after, mean in means:
        promoted = numbers.promotion is not None and numbers.promotion.promoted
        if after.low is not None and after.high is not None:
            axes.vlines(numbers.number, after.low, after.high, color=TRAINED_COLOUR, linewidth=1.6)
        filled = TRAINED_COLOUR if promoted else "none"
        axes.plot([numbers.number], [mean], "o", color=TRAINED_COLOUR, markerfacecolor=filled, markersize=7)
        axes.annotate(f"{mean:.2f}", (numbers.number, mean), (9, 4), textcoords="offset points")
    axes.set(xticks=[numbers.number for numbers, _, _ in means], xlabel="round", ylabel=_title(first.measure))
    axes.margins(x=0.2)
    axes.set_ylim(bottom=0)
    return Plot(
        "The learning curve",
        f"{_title(first.measure)} of each round's adapter on {first.split}, with 95% intervals. Filled: promoted. "
        "Dashed: the base model.",
        svg_of(figure, f"{_title(first.measure)} by round"),
    )


def loss_curve(training: Sequence[LogLine]) -> Plot | None:
    """Training loss and loss on held-out questions by step."""
    loss = [(line.step, line.loss) for line in training if line.loss is not None]
    dev = [(line.step, line.dev_loss) for line in training if line.dev_loss is not None]
    if not loss and not dev:
        return None
    figure, axes = new_figure()
    caption = f"Loss on sampled tokens, over {max(line.step for line in training)} steps."
    if loss:
        few = len(loss) < 40
        axes.plot(
            *zip(*loss, strict=True),
            color=BASE_COLOUR,
            linewidth=1.6,
            label="training",
            marker="o" if few else None,
            markersize=3,
        )
    if dev:
        axes.plot(
            *zip(*dev, strict=True), color=TRAINED_COLOUR, linewidth=2, marker="o", markersize=4, label="held out"
        )
        step, best = min(dev, key=lambda point: point[1] or 0.0)
        caption += f" Lowest on questions held out of training: {best:.3f} at step {step}."
    axes.set(xlabel="step", ylabel="loss")
    axes.set_ylim(bottom=0)
    add_legend(axes)
    return Plot("Training", caption, svg_of(figure, "training loss by step"))


def _title(name: str) -> str:
    return measure_of(name).short
