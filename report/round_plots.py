"""The plots over rounds: the learning curve, form and substance, and the questions that changed."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from evaluation.measures.estimates import Difference, Estimate
from evaluation.measures.gain import CHANGE, QuestionChanges
from evaluation.measures.measures import BY_NAME
from evaluation.results import BASE, BASE_AGAIN, TRAINED, Comparison
from ratchet.plotting import (
    BASE_COLOUR,
    INK,
    MUTED,
    TRAINED_COLOUR,
    Plot,
    add_legend,
    new_figure,
    plot_style,
    svg_of,
)
from report.rounds import RoundNumbers


def round_plots(rounds: Sequence[RoundNumbers]) -> list[Plot]:
    """The plots for which there are records."""
    return [plot for plot in (learning_curve(rounds), gains(rounds), changed_questions(rounds)) if plot is not None]


def learning_curve(rounds: Sequence[RoundNumbers]) -> Plot | None:
    """The measure on which promotion is decided, round by round: each candidate against the adapter that it follows."""
    compared = [
        (found, difference)
        for found in rounds
        if found.promotion is not None and (difference := found.promotion.difference).after is not None
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
    base = next((found.base for found, _ in reversed(compared) if found.base), None)
    level = base.mean if base and base.mean is not None else compared[0][1].before
    if level is not None:
        axes.axhline(level, color=BASE_COLOUR, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.plot([0], [level], "o", color=BASE_COLOUR, markersize=7)
        axes.annotate(f"{level:.2f}", (0, level), (11, 5), textcoords="offset points")
    if base and base.low is not None and base.high is not None:
        axes.vlines(0, base.low, base.high, color=BASE_COLOUR, linewidth=1.6)
    for found, difference in compared:
        assert found.promotion is not None and difference.before is not None and difference.after is not None
        n, before, after = found.number, difference.before, difference.after
        colour = TRAINED_COLOUR if found.promotion.promoted else MUTED
        axes.plot([n - 0.28, n + 0.28], [before, before], color=BASE_COLOUR, linewidth=2.5, solid_capstyle="butt")
        if difference.low is not None and difference.high is not None:
            axes.vlines(n, before + difference.low, before + difference.high, color=colour, linewidth=1.6)
        filled = colour if found.promotion.promoted else "none"
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
    found: dict[int, Estimate] = {}
    for one, _ in compared:
        for n, name in ((0, BASE), (one.number, TRAINED)):
            arm = one.tested.arm(name) if one.tested else None
            mean = arm.measures.get(measure) if arm else None
            if mean is not None and mean.mean is not None:
                found[n] = mean
    return sorted(found.items())


def gains(rounds: Sequence[RoundNumbers]) -> Plot | None:
    """The gain of each round's adapter over the base model: all of it, in form, and in substance."""
    compared = _compared(rounds)
    if not compared:
        return None
    results = compared[-1][0].results
    assert results is not None
    title = BY_NAME[results.primary].short
    parts = (
        (title, INK, -0.2, lambda one: one.measures.get(results.primary)),
        ("form: finished with an answer", BASE_COLOUR, 0.0, lambda one: one.gain.form),
        (f"substance: {title} where both answered", TRAINED_COLOUR, 0.2, lambda one: one.gain.substance),
    )
    with plot_style():
        figure, axes = new_figure(width=7.6)
        axes.axhline(0, color=MUTED, linewidth=1)
        for label, colour, shift, part in parts:
            points = [
                (n.number + shift, found) for n, one in compared if (found := part(one)) and found.mean is not None
            ]
            axes.plot([x for x, _ in points], [found.mean for _, found in points], "o", color=colour, label=label)
            for x, found in points:
                if found.low is not None and found.high is not None:
                    axes.vlines(x, found.low, found.high, color=colour, linewidth=1.6)
        _name_rounds(axes, rounds[-1].number, first=1)
        axes.set_ylabel("gain over base")
        add_legend(axes)
        svg = svg_of(figure, "gain over base in form and in substance by round")
    caption = f"Gain of each round's adapter over the base model on {results.split}, with 95% intervals."
    return Plot("Form and substance", caption, svg)


def changed_questions(rounds: Sequence[RoundNumbers]) -> Plot | None:
    """The questions that each round's adapter gained and broke against base, with those that change by chance."""
    shown = [(n, found) for n, one in _compared(rounds) if (found := one.changes) is not None]
    if not shown:
        return None
    with plot_style():
        figure, axes = new_figure(width=7.6)
        axes.axhline(0, color=MUTED, linewidth=1)
        for label, colour, shift, counts in (
            ("trained", TRAINED_COLOUR, -0.15, shown),
            ("base again", BASE_COLOUR, 0.15, [(n, noise) for n, _ in shown if (noise := _noise(n)) is not None]),
        ):
            at = [n.number + shift for n, _ in counts]
            if at:
                axes.bar(at, [found.gained for _, found in counts], 0.26, color=colour, label=label)
                axes.bar(at, [-found.broken for _, found in counts], 0.26, color=colour, alpha=0.5)
        _name_rounds(axes, rounds[-1].number, first=1)
        axes.set_ylabel("questions")
        add_legend(axes)
        svg = svg_of(figure, "questions gained and broken by round")
    results = shown[-1][0].results
    assert results is not None
    caption = (
        f"Upwards: questions of {results.split} whose {BY_NAME[results.primary].short} rose against base by {CHANGE:g} "
        "or more. Downwards: those where it fell. Base again: the base model sampled once more, which shows how many "
        "change by chance."
    )
    return Plot("Questions gained and broken", caption, svg)


def _compared(rounds: Sequence[RoundNumbers]) -> list[tuple[RoundNumbers, Comparison]]:
    """The rounds of a run of several whose adapter was compared with the base model."""
    return [
        (one, found)
        for one in rounds
        if one.promotion is not None and one.results is not None
        if (found := one.results.comparison(TRAINED)) is not None
    ]


def _noise(one: RoundNumbers) -> QuestionChanges | None:
    return one.results.changes(BASE_AGAIN) if one.results else None


def _name_rounds(axes: Axes, last: int, first: int = 0) -> None:
    names = ["base", *(f"round {n}" for n in range(1, last + 1))]
    axes.set(xticks=range(first, last + 1), xticklabels=names[first:], xlim=(first - 0.5, last + 0.6))


def _title(name: str) -> str:
    return BY_NAME[name].short
