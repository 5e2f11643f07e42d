"""Plots as inline SVG that takes its colours and fonts from the page, so that one drawing reads in light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.measures.measures import BY_NAME
from evaluation.results import BASE, TRAINED, Difference, Results
from ratchet.records import Selection
from report.rounds import RoundNumbers
from report.training import LogLine

# Stand-ins that no plot uses by chance; each becomes a CSS variable of the page.
INK, MUTED, RULE, BASE_COLOUR, TRAINED_COLOUR = "#010203", "#010204", "#010205", "#010206", "#010207"
VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    BASE_COLOUR: "var(--base)",
    TRAINED_COLOUR: "var(--trained)",
}
STYLE = {
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
    title: str
    caption: str
    svg: str


def make_plots(results: Results | None, selection: Selection | None, training: Sequence[LogLine]) -> list[Plot]:
    """The plots that the records allow, in the order of the story: before and after, then how it came about."""
    with matplotlib.rc_context(STYLE):
        plots = [held_out(results) if results else None]
        if selection:
            plots += [best_of_n(selection), sampled_rewards(selection)]
        plots.append(loss_curve(training))
    return [plot for plot in plots if plot is not None]


def learning_curve(rounds: Sequence[RoundNumbers]) -> Plot | None:
    """The measure on which promotion is decided, round by round: each candidate against the adapter that it follows."""
    compared = [
        (found, difference)
        for found in rounds
        if found.promotion is not None and (difference := found.promotion.difference).after is not None
    ]
    if not compared:
        return None
    with matplotlib.rc_context(STYLE):
        return _learning_curve(compared, rounds[-1].number)


def _learning_curve(compared: Sequence[tuple[RoundNumbers, Difference]], last: int) -> Plot:
    figure, axes = _figure(width=7.6)
    first = compared[0][0].promotion
    assert first is not None
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
    ticks = range(last + 1)
    axes.set(xticks=ticks, xticklabels=["base", *(f"round {n}" for n in ticks[1:])], xlim=(-0.5, last + 0.6))
    axes.set_ylabel(_words(first.measure))
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    return Plot(
        "The learning curve",
        f"{_words(first.measure)} on {compared[-1][1].n} questions of {first.split}. Filled: promoted. Hollow: not. "
        "Short line: the adapter that sampled, to which each is compared; bar: the 95% interval of the difference, "
        "from there. Dashed: the base model, with the interval of its own mean.",
        _svg(figure, "learning-curve", f"{_words(first.measure)} by round"),
    )


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
    figure, axes = _figure()
    edges = np.linspace(0, 1, 11)
    width = 0.1 * 0.84 / len(shown)
    for i, (label, colour, values) in enumerate(shown):
        share = np.histogram(np.clip(values, 0, 1), edges)[0] / len(values)
        at = edges[:-1] + 0.008 + width * (i + 0.5)
        axes.bar(at, share, width, color=colour, label=f"{label}, mean {np.mean(values):.2f}")
        axes.axvline(float(np.mean(values)), color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.set(xlim=(0, 1), xlabel=_words(name), ylabel="share of questions")
    _legend(axes)
    return Plot(
        "Before and after",
        f"{_words(name)} of each of the {results.questions} held-out questions ({results.split}). Dashed: the means.",
        _svg(figure, "held-out", f"{_words(name)} by question, base and trained"),
    )


def expected_best(rewards: Sequence[float]) -> list[float]:
    """Expected best of n of these rewards, drawn without replacement, for n = 1..len: a best-of-n without new samples
    (the estimator behind pass@k: Chen and others, 2021, for graded rewards)."""
    ordered, total = sorted(rewards), len(rewards)
    return [
        sum(value * comb(i, n - 1) for i, value in enumerate(ordered)) / comb(total, n) for n in range(1, total + 1)
    ]


def best_of_n(selection: Selection) -> Plot | None:
    known = [[r for r in choice.rewards.values() if r is not None] for choice in selection.questions]
    curves = [expected_best(rewards) for rewards in known if rewards]
    # One set of questions for the whole curve, or it would bend where they change: n goes as far as nine in ten have.
    longest = int(np.quantile([len(curve) for curve in curves], 0.1, method="lower")) if curves else 0
    if longest < 2:
        return None
    full = np.array([curve[:longest] for curve in curves if len(curve) >= longest])
    mean = full.mean(axis=0)
    figure, axes = _figure()
    n = np.arange(1, longest + 1)
    axes.plot(n, mean, color=TRAINED_COLOUR, linewidth=2, marker="o", markersize=4)
    axes.axhline(mean[0], color=BASE_COLOUR, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.annotate(f"{mean[-1]:.2f}", (n[-1], mean[-1]), (0, 7), textcoords="offset points", ha="center")
    axes.annotate(f"one sample: {mean[0]:.2f}", (n[-1], mean[0]), (0, -13), textcoords="offset points", ha="right")
    axes.set(xlabel="samples to choose from", ylabel="reward of the best", xticks=n if longest <= 16 else n[::8])
    axes.margins(y=0.25)
    left_out = len(selection.questions) - len(full)
    note = f" {left_out} with fewer rewards are left out." if left_out else ""
    return Plot(
        "What choosing is worth",
        f"Expected reward of the best of n sampled trajectories, mean over {len(full)} training questions.{note}",
        _svg(figure, "best-of-n", "expected reward of the best of n samples"),
    )


def sampled_rewards(selection: Selection) -> Plot | None:
    kept_keys = set(selection.kept)
    every = [r for choice in selection.questions for r in choice.rewards.values() if r is not None]
    kept = [
        r for choice in selection.questions for key, r in choice.rewards.items() if r is not None and key in kept_keys
    ]
    nulls = sum(r is None for choice in selection.questions for r in choice.rewards.values())
    if not every:
        return None
    figure, axes = _figure()
    edges = [i / 20 for i in range(21)]
    axes.hist(np.clip(every, 0, 1), edges, color=BASE_COLOUR, rwidth=0.84, label=f"sampled, {len(every)}")
    axes.hist(np.clip(kept, 0, 1), edges, color=TRAINED_COLOUR, rwidth=0.84, label=f"kept, {len(kept)}")
    axes.set(xlim=(0, 1), xlabel="reward", ylabel="trajectories")
    _legend(axes)
    note = f" {nulls} without a reward are not in it." if nulls else ""
    return Plot(
        "What was sampled and kept",
        f"Rewards of the sampled trajectories, and of those that were kept for training.{note}",
        _svg(figure, "sampled", "rewards of sampled and kept trajectories"),
    )


def loss_curve(training: Sequence[LogLine]) -> Plot | None:
    loss = [(line.step, line.loss) for line in training if line.loss is not None]
    dev = [(line.step, line.dev_loss) for line in training if line.dev_loss is not None]
    if not loss and not dev:
        return None
    figure, axes = _figure()
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
    _legend(axes)
    return Plot("Training", caption, _svg(figure, "loss", "training loss by step"))


def _words(name: str) -> str:
    return BY_NAME[name].short


def _figure(width: float = 5.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, 3.0), layout="constrained")
    return figure, figure.add_subplot()


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0, handlelength=1, handleheight=0.8)


def _svg(figure: Figure, salt: str, label: str) -> str:
    """The drawing alone, deterministic: no XML prologue, no metadata, no names of other sites."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<svg width="[^"]*" height="[^"]*"', f'<svg role="img" aria-label="{label}"', text, count=1)
    text = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", text)
    text = re.sub(r" ?font-family: [^;\"]*;?", "", text)
    for stand_in, variable in VARIABLES.items():
        text = text.replace(stand_in, variable)
    return text
