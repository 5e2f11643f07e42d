"""The first screen of the report: the figure of methods and rounds, the table of six rows, and the three examples."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from ratchet.core.config import Config
from ratchet.core.records import Search
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.results import Results
from ratchet.report.gather import Gathered
from ratchet.report.page import choose_examples, make_examples, render
from ratchet.report.plots import axis_over, learning_curve, quality_and_cost
from ratchet.report.rounds import RoundNumbers
from ratchet.rounds.records import Promotion
from tests.helpers.browser import needs_chromium
from tests.helpers.handmade_run import add_evaluation, make_run
from tests.helpers.reported import gathered

ARMS = (("base", "base", 0.5), ("adapter", "0f3a91c4", 0.6), ("no retrieval", "base", 0.1))
TOKENS = ("prompt_tokens", "new_tokens")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Gathered]:
    config, folder = make_run(tmp_path_factory.mktemp("run"), train=8)
    add_evaluation(config, folder, arms=ARMS)
    return config, gathered(config, folder)


@pytest.fixture(scope="module")
def results(made: tuple[Config, Gathered]) -> Results:
    assert made[1].results is not None
    return made[1].results


@pytest.fixture(scope="module")
def rounds(made: tuple[Config, Gathered], results: Results) -> list[RoundNumbers]:
    """Three rounds, of which the second is not promoted; each is a little better than the one before."""
    selection, arm = made[1].selection, results.arm("adapter")
    assert selection is not None and arm is not None
    numbers = []
    for number, promoted in ((1, True), (2, False), (3, True)):
        better = arm.measures["f1"].model_copy(update={"mean": 0.2 * number + 0.1})
        trained = arm.model_copy(update={"measures": {**arm.measures, "f1": better}})
        own = results.model_copy(update={"split": "dev", "arms": (results.arms[0], trained)})
        verdict = Promotion(
            round=number, candidate="c", parent="p", split="dev", measure="f1", base=0.1, difference=Difference(n=0),
            promoted=promoted, reason="",
        )  # fmt: skip
        kept = selection.model_copy(update={"questions": selection.questions[number:]})
        numbers.append(RoundNumbers(number, kept, own, verdict))
    return numbers


class Drawn:
    """A drawing as a reader sees it: points by name, in the units of its axes."""

    def __init__(self, svg: str) -> None:
        self.tree = ElementTree.fromstring(svg)
        texts = [(one, one.text or "") for one in self.tree.iter("text") if not one.get("class")]
        self._y = {float(one.get("y", 0)) - 5: _number(text) for one, text in texts if one.get("text-anchor") == "end"}
        lowest = max(float(one.get("y", 0)) for one, text in texts if re.fullmatch(r"[\d,.]+", text))
        self._x = {float(one.get("x", 0)): _number(text) for one, text in texts if float(one.get("y", 0)) == lowest}
        groups = [group for group in self.tree.iter("g") if group.get("data-name")]
        self.points = {group.get("data-name"): group for group in groups if group.get("class") != "round"}
        self.rings = {group.get("data-name"): group for group in groups if group.get("class") == "round"}

    def value(self, x: float, y: float) -> tuple[float, float]:
        """The values at a place."""
        return _between(self._x, x), _between(self._y, y)

    def centre(self, group: ElementTree.Element) -> tuple[float, float]:
        circle = group.find("circle")
        assert circle is not None
        return float(circle.get("cx", 0)), float(circle.get("cy", 0))

    def ends(self, path: ElementTree.Element) -> list[tuple[float, float]]:
        found = re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get("d", ""))
        return [(float(x), float(y)) for x, y in found]


def _number(text: str) -> float | None:
    return float(text.replace(",", "")) if re.fullmatch(r"[\d,.]+", text) else None


def _between(ticks: Mapping[float, float | None], at: float) -> float:
    """The value at a place, from the ticks around it."""
    (a, x), *_, (b, y) = sorted((place, value) for place, value in ticks.items() if value is not None)
    return x + (y - x) * (at - a) / (b - a)


def test_each_method_is_a_point_at_its_quality_and_cost(results: Results) -> None:
    plot = quality_and_cost(results)
    assert plot is not None
    drawn = Drawn(plot.svg)
    assert {*drawn.points} == {arm.name for arm in results.arms}
    for arm in results.arms:
        f1, group = arm.measures["f1"], drawn.points[arm.name]
        cost, quality = drawn.value(*drawn.centre(group))
        assert cost == pytest.approx(sum(arm.measures[name].mean or 0 for name in TOKENS), abs=2)
        assert quality == pytest.approx(f1.mean, abs=0.005)
        interval = group.find("path")
        assert interval is not None
        bounds = [drawn.value(*end)[1] for end in drawn.ends(interval)]
        assert bounds == pytest.approx([f1.low, f1.high], abs=0.005)


def test_an_arrow_leads_from_base_to_trained(results: Results) -> None:
    plot = quality_and_cost(results)
    assert plot is not None
    drawn = Drawn(plot.svg)
    arrow = next(path for path in drawn.tree.iter("path") if path.get("class") == "arrow")
    assert drawn.ends(arrow) == [drawn.centre(drawn.points[name]) for name in ("base", "adapter")]
    alone = quality_and_cost(results.model_copy(update={"arms": results.arms[:1]}))
    assert alone is not None and "arrow" not in alone.svg and "base" in Drawn(alone.svg).points


def test_without_tokens_the_cost_is_model_calls(results: Results) -> None:
    """As of an agent behind the gateway, whose service counts none."""
    arm = results.arms[0]
    none = {name: arm.measures[name].model_copy(update={"mean": 0.0}) for name in TOKENS}
    counted = results.model_copy(update={"arms": (arm.model_copy(update={"measures": arm.measures | none}),)})
    plot = quality_and_cost(counted)
    assert plot is not None
    drawn = Drawn(plot.svg)
    cost, _ = drawn.value(*drawn.centre(drawn.points["base"]))
    assert cost == pytest.approx(arm.measures["calls"].mean, abs=0.02)


def test_promoted_rounds_are_steps_beside_the_arrow(results: Results, rounds: list[RoundNumbers]) -> None:
    plot = quality_and_cost(results, rounds)
    assert plot is not None
    drawn = Drawn(plot.svg)
    heights = {name: drawn.value(*drawn.centre(ring))[1] for name, ring in drawn.rings.items()}
    assert heights == pytest.approx({"1": 0.3, "3": 0.7}, abs=0.005), "not of the second, which was not promoted"
    one = quality_and_cost(results, rounds[:1])
    assert one is not None and Drawn(one.svg).rings == {}, "one round has no steps"


def test_the_learning_curve_has_every_round_and_the_share_kept(rounds: list[RoundNumbers]) -> None:
    plot = learning_curve(rounds)
    assert plot is not None
    drawn = Drawn(plot.svg)
    base = rounds[0].quality("base")
    assert base is not None
    heights = {name: drawn.value(*drawn.centre(group))[1] for name, group in drawn.points.items()}
    assert heights == pytest.approx({"0": base.mean, "1": 0.3, "2": 0.5, "3": 0.7}, abs=0.005)
    assert [name for name, one in drawn.points.items() if "hollow" in one.get("class", "")] == ["2"]
    bars = {path.get("data-name"): path for path in drawn.tree.iter("path") if path.get("class") == "kept"}
    shares = {name: max(drawn.value(*end)[1] for end in drawn.ends(bar)) for name, bar in bars.items()}
    assert shares == pytest.approx({str(n.number): n.share_kept for n in rounds}, abs=0.005)
    sampled = learning_curve([replace(n, results=None, promotion=None) for n in rounds[:1]])
    assert sampled is not None and Drawn(sampled.svg).points == {}
    assert learning_curve([RoundNumbers(1, None, None, None)]) is None and learning_curve([]) is None


@given(st.lists(st.floats(0, 1e6).filter(lambda value: value == 0 or value > 1e-6), min_size=1))
def test_an_axis_holds_all_values_between_few_ticks(values: list[float]) -> None:
    axis = axis_over("", values)
    places = [place for place, _ in axis.ticks]
    assert axis.low <= min(values) * 1.01 and axis.high >= max(values) * 0.99
    assert 2 <= len(places) <= 8 and (axis.low, axis.high) == (places[0], places[-1])


@pytest.mark.slow
def test_the_table_has_the_results_of_base_trained_and_the_best_baseline(made: Any, results: Results) -> None:
    text = render(*made)
    table = text[text.index("results summary") :].partition("</table>")[0]
    rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)[1:]
    assert len(rows) == 6 and results.best_baseline is not None
    for name in ("base", "adapter", results.best_baseline.name):
        arm = results.arm(name)
        assert arm is not None
        assert f">{arm.measures['f1'].mean:.2f} " in rows[0] and f">{arm.measures['calls'].mean:.1f} " in rows[3]


def test_the_examples_are_gained_still_wrong_and_broken(made: tuple[Config, Gathered], results: Results) -> None:
    chosen = choose_examples(results, [*results.arms[0].values])
    assert [*chosen] == ["gained", "still wrong", "broken"]
    base, trained = results.arms[0].known("f1"), results.arms[1].known("f1")
    assert trained[chosen["gained"]] - base[chosen["gained"]] >= 0.5
    assert base[chosen["broken"]] - trained[chosen["broken"]] >= 0.5
    assert max(base[chosen["still wrong"]], trained[chosen["still wrong"]]) < 0.5
    unchanged = [i for i in base if base[i] == trained[i] == 1.0]
    assert choose_examples(results, unchanged) == {}, "and of no kind that does not occur"


@pytest.mark.slow
def test_an_example_shows_what_was_asked_found_and_answered(made: tuple[Config, Gathered]) -> None:
    section, text = made[1].evaluated, render(*made)
    assert section is not None
    stored = {line.trajectory.key: line for lines in section.lines.values() for _, line in lines}
    examples = make_examples(made[1])
    assert len(examples) == 3
    for example in examples:
        trajectory = stored[example["key"]].read()
        searches = [event for event in trajectory.events if isinstance(event, Search)]
        assert trajectory.policy == "0f3a91c4" and example["answer"] == trajectory.answer
        assert [asked for asked, _ in example["steps"]] == [search.query for search in searches]
        gold = example["question"].gold_ids
        for (_, found), search in zip(example["steps"], searches, strict=True):
            assert found == [(passage.title, passage.document_id in gold) for passage in search.passages]
        for part in (example["question"].text, example["answer"], example["base_answer"], searches[0].query):
            assert str(escape(part)) in text
        assert f'href="#t={trajectory.key}"' in text


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("width", [400, 1280])
def test_the_figure_can_be_read(browser: Any, made: Any, rounds: Any, tmp_path: Path, width: int) -> None:
    """At both widths its texts are 11 pixels high or more, lie inside it, and no name covers another."""
    (tmp_path / "report.html").write_text(render(made[0], replace(made[1], rounds=tuple(rounds))))
    with browser.new_page(viewport={"width": width, "height": 900}) as page:
        page.goto((tmp_path / "report.html").as_uri())
        drawings = page.evaluate(
            """() => [...document.querySelectorAll("#figure svg")].map((svg) => {
                 const box = (one) => {
                   const { left, top, right, bottom } = one.getBoundingClientRect();
                   return [left, top, right, bottom];
                 };
                 const size = parseFloat(getComputedStyle(svg).fontSize) * svg.getBoundingClientRect().width / 520;
                 const texts = [...svg.querySelectorAll("text")].filter((one) => one.textContent);
                 return [size, box(svg), texts.map(box), texts.filter((one) => one.matches(".name")).map(box)];
               })"""
        )
        assert page.evaluate("document.documentElement.scrollWidth") == width
    assert len(drawings) == 2
    for size, (left, top, right, bottom), texts, names in drawings:
        assert size >= 11
        assert all(left - 1 <= a and top - 1 <= b and c <= right + 1 and d <= bottom + 1 for a, b, c, d in texts)
        pairs = [(one, other) for i, one in enumerate(names) for other in names[:i]]
        assert not [1 for (a, b, c, d), (e, f, g, h) in pairs if a < g and e < c and b + 4 < h and f + 4 < d]
