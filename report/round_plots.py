"""The plot over rounds: the learning curve."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from evaluation.measures.estimates import Difference, Estimate
from evaluation.measures.measures import BY_NAME
from evaluation.results import BASE, TRAINED
from ratchet.plotting import (
    BASE_COLOUR,
    INK,
    MUTED,
    TRAINED_COLOUR,
    Plot,
    new_figure,
    plot_style,
    svg_of,
)
from report.rounds import RoundNumbers


def learning_curve(rounds: Sequence[RoundNumbers]) -> Plot | None:
    """The measure on which promotion is decided, round by round: each candidate against the adapter that it follows."""
    compared = [
        (numbers, difference)
        for numbers in rounds
        if numbers.promotion is not None and (difference := numbers.promotion.difference).after is not None
    ]
    if not compared:
        return None
    with plot_style():
        return _learning_curve(compared, rounds[-1].number)


def _learning_curve(compared: Sequence[tuple[RoundNumbers, Difference]], last: int) -> Plot:
    figure, axes = new_figure(width=7.6)
    first = compared[0][0].promotion
    assert first is not None
    tested = _tested(compared, first.measure)
    base = next((numbers.base for numbers, _ in reversed(compared) if numbers.base), None)
    level = base.mean if base and base.mean is not None else compared[0][1].before
    if level is not None:
        axes.axhline(level, color=BASE_COLOUR, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.plot([0], [level], "o", color=BASE_COLOUR, markersize=7)
        axes.annotate(f"{level:.2f}", (0, level), (11, 5), textcoords="offset points")
    if base and base.low is not None and base.high is not None:
        axes.vlines(0, base.low, base.high, color=BASE_COLOUR, linewidth=1.6)
    for numbers, difference in compared:
        assert numbers.promotion is not None and difference.before is not None and difference.after is not None
        n, before, after = numbers.number, difference.before, difference.after
        colour = TRAINED_COLOUR if numbers.promotion.promoted else MUTED
        axes.plot([n - 0.28, n + 0.28], [before, before], color=BASE_COLOUR, linewidth=2.5, solid_capstyle="butt")
        if difference.low is not None and difference.high is not None:
            axes.vlines(n, before + difference.low, before + difference.high, color=colour, linewidth=1.6)
        filled = colour if numbers.promotion.promoted else "none"
        axes.plot([n], [after], "o", color=colour, markerfacecolor=filled, markersize=8, markeredgewidth=1.8)
        axes.annotate(f"{after:.2f}", (n, after), (11, 5), textcoords="offset points")
    for n, mean in tested:
        assert mean.mean is not None
        axes.plot([n + 0.14], [mean.mean], "s", color=INK, markersize=5)
        if mean.low is not None and mean.high is not None:
            axes.vlines(n + 0.14, mean.low, mean.high, color=INK, linewidth=1.0)
    _name_rounds(axes, last)
    axes.set_ylabel(_title(first.measure))
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    return Plot(
        "The learning curve",
        f"{_title(first.measure)} on {compared[-1][1].n} questions of {first.split}. Filled: promoted. Hollow: not. "
        "Short line: the adapter that sampled, to which each is compared; bar: the 95% interval of the difference, "
        "from there. Dashed: the base model, with the interval of its own mean."
        + (
            " Squares: base and the tested adapter on the test questions, with the intervals of their means."
            * bool(tested)
        ),
        svg_of(figure, f"{_title(first.measure)} by round"),
    )


def _tested(compared: Sequence[tuple[RoundNumbers, Difference]], measure: str) -> list[tuple[int, Estimate]]:
    """(round, mean) of what was measured on the test questions; the base model is round 0."""
    means: dict[int, Estimate] = {}
    for numbers, _ in compared:
        for n, name in ((0, BASE), (numbers.number, TRAINED)):
            arm = numbers.tested.arm(name) if numbers.tested else None
            mean = arm.measures.get(measure) if arm else None
            if mean is not None and mean.mean is not None:
                means[n] = mean
    return sorted(means.items())


def _name_rounds(axes: Axes, last: int) -> None:
    names = ["base", *(f"round {n}" for n in range(1, last + 1))]
    axes.set(xticks=range(last + 1), xticklabels=names, xlim=(-0.5, last + 0.6))


def _title(name: str) -> str:
    return BY_NAME[name].short
