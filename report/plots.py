"""Plots as inline SVG that takes its colours and fonts from the page, so that one drawing reads in light and dark.

Texts may be 18 units high on a narrow page (style.html.j2), and what stands beside a point is placed for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from markupsafe import Markup

from ratchet.evaluation.formats import format_estimate
from ratchet.evaluation.measures.estimates import Estimate
from ratchet.evaluation.measures.measures import measure_of
from ratchet.evaluation.results import BASE, TRAINED, Arm, Results
from ratchet.report.records import LogLine
from ratchet.report.rounds import RoundNumbers, quality_of

WIDTH, HEIGHT = 520, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 28, 40, 58
"""The distances of the axes from the edges."""
SIDES = ((1, 0), (-1, 0), (0.5, -1), (0.5, 1), (-0.5, -1), (-0.5, 1), (0, -1), (0, 1))
"""Where the name of a point may be: right and down of it."""
ARROWHEAD = Markup(
    '<defs><marker id="arrowhead" viewBox="0 0 8 8" refX="14" refY="4" markerWidth="10" markerHeight="10" '
    'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
)


@dataclass(frozen=True)
class Plot:
    """A plot of the page."""

    title: str
    caption: str
    svg: Markup


class Axis(NamedTuple):
    """A linear axis."""

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]


def axis_over(title: str, values: Iterable[float], max_steps: int = 5) -> Axis:
    """An axis with round ticks around the values; from 0 unless all of them are far from it."""
    given = [*values]
    low, high = min(given), max(given) or 1.0
    low = 0.0 if 0 <= low < 0.7 * high else low
    least = (high - low or abs(high)) / max_steps
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)
    first, last = math.floor(low / step + 0.001), math.ceil(high / step - 0.001)
    ticks = [i * step for i in range(first, max(last, first + 1) + 1)]
    return Axis(title, ticks[0], ticks[-1], [(tick, f"{tick:,g}") for tick in ticks])


@dataclass
class Drawing:
    """A drawing between two axes. `label` describes it to screen readers."""

    label: str
    x: Axis
    y: Axis
    _parts: list[Markup] = field(default_factory=list)
    _taken: list[tuple[float, float, float, float]] = field(default_factory=list)
    """The boxes in which no name may be."""

    def __post_init__(self) -> None:
        for value, text in self.y.ticks:
            _, up = self.at(self.x.low, value)
            self.add('<path class="rule" d="M{} {}H{}"/>', LEFT, up, WIDTH - RIGHT)
            self.text(LEFT - 8, up + 5, text, "end")
        for value, text in self.x.ticks:
            self.text(self.at(value, self.y.low)[0], HEIGHT - BOTTOM + 22, text, "middle")
        self.text(0, 18, self.y.title, "start")
        self.text(WIDTH - RIGHT, HEIGHT - 8, self.x.title, "end")

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place of a value in the drawing."""
        across, up = (x - self.x.low) / (self.x.high - self.x.low), (y - self.y.low) / (self.y.high - self.y.low)
        left, top = LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)
        return round(left, 1), round(top, 1)

    def add(self, markup: str, *values: object) -> None:
        """Put an element into the drawing, with its values escaped."""
        self._parts.append(Markup(markup).format(*values))

    def text(self, left: float, line: float, text: object, anchor: str, kind: str = "") -> None:
        self.add('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>', kind, left, line, anchor, text)

    def path(self, kind: str, points: Iterable[tuple[float, float]], name: object = "") -> None:
        line = "L".join(f"{x} {y}" for x, y in (self.at(*point) for point in points))
        self.add('<path class="{}" data-name="{}" d="M{}"/>', kind, name, line)

    def arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw an arrow that no name covers."""
        self.add(ARROWHEAD)
        self.path("arrow", [start, end])
        (left, bottom), (right, top) = self.at(*start), self.at(*end)
        for part in range(1, 20):
            self._take(left + (right - left) * part / 20, bottom + (top - bottom) * part / 20, 4)

    def point(self, kind: str, name: object, x: float, found: Estimate, about: str, inside: str = "") -> None:
        """Draw a mean with its interval, or with a text inside. `about` is shown where the mouse rests on it."""
        across, up = self.at(x, found.mean or 0.0)
        self.add('<g class="{}" data-name="{}"><title>{}</title>', kind, name, about)
        if found.low is not None and found.high is not None and not inside:
            self.path("interval", [(x, found.low), (x, found.high)])
        radius = 11 if inside else 6
        self.add('<circle cx="{}" cy="{}" r="{}"/>', across, up, radius)
        self.text(across, up + 5, inside, "middle")
        self.add("</g>")
        self._take(across, up, radius)

    def name(self, x: float, y: float, text: str) -> None:
        """Write a text beside a point, where it covers no point and no other name, if there is such a place."""
        across, up = self.at(x, y)
        wide = 9.0 * len(text)
        for gap, (right, down) in [*product((12, 20, 32, 48), SIDES), (12, SIDES[0])]:
            left, line = across + right * gap, up + 5 + down * (gap + 4)
            anchor, part = ("start", 0.0) if right > 0 else ("end", 1.0) if right < 0 else ("middle", 0.5)
            box = (left - part * wide, line - 15, left + (1 - part) * wide, line + 3)
            if self._is_free(*box):
                break
        self._taken.append(box)
        self.text(left, line, text, anchor, "name")

    def _take(self, across: float, up: float, radius: float) -> None:
        self._taken.append((across - radius, up - radius, across + radius, up + radius))

    def _is_free(self, left: float, top: float, right: float, bottom: float) -> bool:
        inside = left >= LEFT and right <= WIDTH and bottom <= HEIGHT - BOTTOM + 8
        return inside and not any(
            left < x2 and x1 < right and top < y2 and y1 < bottom for x1, y1, x2, y2 in self._taken
        )

    def svg(self) -> Markup:
        start = '<svg class="plot" role="img" aria-label="{}" viewBox="0 0 {} {}">'
        return Markup(start).format(self.label, WIDTH, HEIGHT) + Markup("").join(self._parts) + Markup("</svg>")


class Method(NamedTuple):
    """An arm as a point of the figure."""

    cost: float
    """Tokens a question, else model calls."""
    quality: Estimate

    @property
    def place(self) -> tuple[float, float]:
        return self.cost, self.quality.mean or 0.0


def methods_of(results: Results, unit: Sequence[str]) -> dict[str, Method]:
    """The arms that have a mean of the primary measure. `unit`: the measures whose sum is the cost."""
    found = {arm.name: (arm, quality) for arm in results.arms if (quality := quality_of(results, arm.name)) is not None}
    return {name: Method(_cost(arm, unit), quality) for name, (arm, quality) in found.items()}


def _cost(arm: Arm, unit: Iterable[str]) -> float:
    return sum(arm.measures[name].mean or 0.0 for name in unit if name in arm.measures)


def quality_and_cost(results: Results, rounds: Sequence[RoundNumbers] = ()) -> Plot | None:
    """Every arm by its cost and quality, an arrow from base to trained, and the steps of the promoted rounds."""
    has_tokens = all(_cost(arm, ["new_tokens"]) for arm in results.arms)
    unit = ("prompt_tokens", "new_tokens") if has_tokens else ("calls",)
    title, per_question = measure_of(results.primary).short, f"{'tokens' if has_tokens else 'model calls'} a question"
    methods = methods_of(results, unit)
    if not methods:
        return None
    promoted = [(n.number, n.results) for n in rounds if n.results and n.promotion and n.promotion.promoted]
    measured = [(number, own.split, methods_of(own, unit)) for number, own in promoted]
    steps = [(f"round {n} on {split}", n, own[TRAINED]) for n, split, own in measured if TRAINED in own]
    steps = steps if len(steps) > 1 else []

    def about(name: str, method: Method) -> str:
        return f"{name}: {title} {format_estimate(method.quality, results.primary)}, {method.cost:,.0f} {per_question}"

    points = [*methods.values(), *(method for _, _, method in steps)]
    bounds = [value for one in points for value in (one.quality.low, one.quality.mean, one.quality.high)]
    drawing = Drawing(
        f"{title} against {per_question}",
        axis_over(per_question, [0.0, *(one.cost for one in points)]),
        axis_over(f"{title} on {results.split}", [value for value in bounds if value is not None]),
    )
    caption = f"{title} of each method on {results.questions} questions of {results.split}, with 95% intervals."
    if steps:
        _, split, first = measured[0]
        drawing.path("way", [one.place for one in (first.get(BASE), *(one for _, _, one in steps)) if one])
        caption += f" Dashed: from base over the promoted rounds, on {split}."
    for name, number, method in steps:
        drawing.point("round", number, method.cost, method.quality, about(name, method), inside=str(number))
    if BASE in methods and TRAINED in methods:
        drawing.arrow(methods[BASE].place, methods[TRAINED].place)
    shown = {name: "trained" if name == TRAINED else name for name in methods}
    for name, method in methods.items():
        kind = name if name in (BASE, TRAINED) else "other"
        drawing.point(kind, name, method.cost, method.quality, about(shown[name], method))
    for name, method in methods.items():
        drawing.name(*method.place, shown[name])
    return Plot("Quality and cost", caption, drawing.svg())


def learning_curve(rounds: Sequence[RoundNumbers]) -> Plot | None:
    """Quality of the base model and of each round's adapter, over the share of questions kept; None without either."""
    found = [(0, "base", n.quality(BASE)) for n in rounds[:1]]
    found += [(n.number, "adapter" if n.is_promoted else "adapter hollow", n.quality(TRAINED)) for n in rounds]
    means = [(number, kind, one) for number, kind, one in found if one is not None]
    shares = [(n.number, n.share_kept) for n in rounds if n.share_kept is not None]
    if not means and not shares:
        return None
    measured = next((n.results for n in rounds if n.results), None)
    title = f"{measure_of(measured.primary).short} on {measured.split}" if measured else "share of questions kept"
    first, last = min(number for number, *_ in found if number or means), rounds[-1].number
    ticks = [(float(i), str(i) if i else "base") for i in range(first, last + 1, -(-last // 8))]
    values = [*(share for _, share in shares), *(one.high or one.mean or 0.0 for _, _, one in means)]
    x = Axis("round", first - 0.5, last + 0.5, ticks)
    drawing = Drawing(f"{title}, by round", x, axis_over(title, [0.0, *values]))
    for number, share in shares:
        left, right = number - 0.3, number + 0.3
        drawing.path("kept", [(left, 0), (left, share), (right, share), (right, 0)], number)
        across, bottom = drawing.at(number, 0)
        drawing.text(across, bottom - 8, f"{share:.0%}", "middle")
    if means:
        drawing.path("way", [(number, one.mean or 0.0) for number, kind, one in means if "hollow" not in kind])
    for number, kind, one in means:
        drawing.point(kind, number, number, one, f"{f'round {number}' if number else 'base'}: {one.mean:.3f}")
    for number, _, one in means:
        drawing.name(number, one.mean or 0.0, f"{one.mean:.2f}")
    caption = f"{title} after each round, with 95% intervals. " if means else ""
    hollow = " Hollow: not promoted." if any("hollow" in kind for _, kind, _ in means) else ""
    return Plot("Learning curve", f"{caption}Bars: the share of questions kept for training.{hollow}", drawing.svg())


def loss_curve(training: Sequence[LogLine]) -> Plot | None:
    """Training loss and loss on held-out questions by step."""
    loss = [(float(line.step), line.loss) for line in training if line.loss is not None]
    held_out = [(float(line.step), line.dev_loss) for line in training if line.dev_loss is not None]
    if not loss and not held_out:
        return None
    steps, losses = zip(*loss, *held_out, strict=True)
    drawing = Drawing("training loss by step", axis_over("step", [0.0, *steps]), axis_over("loss", [0.0, *losses]))
    caption = f"Loss on sampled tokens, over {max(line.step for line in training)} steps."
    if loss:
        drawing.path("loss base", loss)
    if held_out:
        drawing.path("loss adapter", held_out)
        step, best = min(held_out, key=lambda point: point[1])
        caption += f" Thick: on questions held out of training, lowest at step {step:.0f} with {best:.3f}."
    return Plot("Training", caption, drawing.svg())
