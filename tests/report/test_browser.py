"""The page's script in a real browser: filters, permalinks, keys, messages and explanations."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from ratchet.core.config import Config
from ratchet.report import view
from ratchet.report.gather import Gathered
from ratchet.report.page import render
from ratchet.report.view import MessageDecoder
from tests.helpers.browser import needs_chromium
from tests.helpers.handmade_run import make_run
from tests.helpers.reported import gathered
from tests.helpers.tiny import save_tiny_tokenizer
from tests.report.test_page import merged

pytestmark = needs_chromium
Sections = dict[str, list[dict[str, Any]]]
Play = Callable[..., Any]
HELPERS = """
const one = (selector) => document.querySelector(selector);
const all = (selector) => [...document.querySelectorAll(selector)];
const key = (name) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
const set = (selector, value, type = "input") => {
  one(selector).value = value;
  one(selector).dispatchEvent(new Event(type));
};
const settled = async () => {
  do await new Promise((done) => setTimeout(done, 5)); while (document.body.getAttribute("aria-busy") === "true");
};
const shown = () => all("#questions [data-question]").map((row) => row.dataset.question);
const columns = () => all(".run").map((column) => column.dataset.key);
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Gathered]:
    folder = tmp_path_factory.mktemp("run")
    config, round_folder = make_run(folder, train=12, test=12)
    model = config.models["agent"].model_copy(update={"path": str(save_tiny_tokenizer(folder / "model"))})
    config = config.model_copy(update={"models": {"agent": model}})
    return config, gathered(config, round_folder)


@pytest.fixture(scope="module")
def sections(made: tuple[Config, Gathered]) -> Sections:
    shown = view.make_view(made[1], view.DetailReader(made[0]))
    return {section["name"]: section["questions"] for section in merged(shown)["sections"]}


@pytest.fixture(scope="module")
def address(made: tuple[Config, Gathered], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, "GROUP_BYTES", 100_000)
        path.write_text(render(made[0], made[1]))
    assert path.read_text().count('id="chunk-') > 5, "several groups of questions"
    return path.as_uri()


@pytest.fixture
def play(browser: Any, address: str) -> Play:
    """Run a script on the page, once it has opened what it shows, and return what its `result()` gives."""

    def played(script: str, fragment: str = "") -> Any:
        with browser.new_page() as page:
            page.goto(f"{address}#{fragment}" if fragment else address)
            return page.evaluate(f"async () => {{ {HELPERS} await settled(); {script}; return result(); }}")

    return played


@pytest.mark.slow
def test_filters_leave_the_questions_and_trajectories_that_match(play: Play, sections: Sections) -> None:
    sampled = sections["sampled"]
    expected = {
        "outcome": [r["key"] for q in sampled for r in q["runs"] if "unparsed" in r["outcomes"]],
        "reward": [r["key"] for q in sampled for r in q["runs"] if r["reward"] is not None and r["reward"] >= 0.5],
        "role": [r["key"] for q in sampled for r in q["runs"] if "answerer" in r["roles"]],
        "kind": [r["key"] for q in sampled if q["kind"] == "two hops" for r in q["runs"]],
        "text": [r["key"] for q in sampled for r in q["runs"] if "agnt" in json.dumps(r["events"])],
    }
    found = play("""
      const everything = () => shown().flatMap((id) => {
        one(`#questions [data-question="${id}"]`).click();
        return columns();
      });
      const found = {};
      set("#filter-outcome", "unparsed", "change"); found.outcome = everything(); one("#clear-filters").click();
      set("#filter-min", "0.5"); found.reward = everything(); one("#clear-filters").click();
      set("#filter-role", "answerer", "change"); found.role = everything(); one("#clear-filters").click();
      set("#filter-kind", "two hops", "change"); found.kind = everything(); one("#clear-filters").click();
      set("#question-search", "AGNT"); await settled(); found.text = everything(); one("#clear-filters").click();
      found.cleared = shown().length;
      const result = () => found;
    """)
    assert found.pop("cleared") == len(sampled)
    assert all(expected.values()) and found == expected


@pytest.mark.slow
def test_what_went_wrong_leads_to_its_trajectories(play: Play, sections: Sections) -> None:
    base = [r for q in sections["evaluated"] for r in q["runs"] if r["arm"] == "base"]
    wrong = [run["key"] for run in base if "wrong_answer" in run["outcomes"]]
    count, shown, label = play("""
      const button = one('.outcomes [data-arm="base"][data-outcome="wrong_answer"]');
      button.click();
      const keys = shown().flatMap((id) => { one(`#questions [data-question="${id}"]`).click(); return columns(); });
      const result = () => [Number(button.textContent), keys, one("#outcome-meaning").textContent];
    """)
    assert (count, shown) == (len(wrong), wrong) and "shares no word" in label


@pytest.mark.slow
def test_a_permalink_opens_its_trajectory_alone(play: Play, sections: Sections) -> None:
    question = sections["evaluated"][5]
    key = question["runs"][1]["key"]
    section, current, columns, focused = play(
        """const result = () => [one("#section-switch [aria-pressed=true]").dataset.value,
           one("#questions [aria-current=true]").dataset.question, columns(), document.activeElement.dataset.key];""",
        fragment=f"t={key}",
    )
    assert (section, current, columns, focused) == ("evaluated", question["id"], [key], key)
    told = play('const result = () => one("#question-count").textContent;', fragment="t=<img>")
    assert told == "The trajectory of this link is not on the page."


@pytest.mark.slow
def test_keys_move_between_questions_and_trajectories(play: Play, sections: Sections) -> None:
    second = sections["sampled"][1]
    keys = [run["key"] for run in second["runs"]]
    states = play("""
      const states = [];
      const note = () => {
        const { question, key } = document.activeElement.dataset;
        states.push([question || key || "", location.hash, columns().length]);
      };
      one("#questions [aria-current=true]").focus();
      for (const name of ["ArrowDown", "Enter", "ArrowRight", "Enter", "ArrowRight", "Escape", "Escape"]) {
        key(name);
        note();
      }
      one("#choices tr").focus(); key("ArrowDown"); key("Enter"); note();
      const result = () => states;
    """)
    n = len(keys)
    assert states == [
        [second["id"], "", n],
        [keys[0], "", n],
        [keys[1], "", n],
        [keys[1], f"#t={keys[1]}", 1],
        [keys[2], f"#t={keys[2]}", 1],
        [keys[2], "#trajectories", n],
        [second["id"], "#trajectories", n],
        [second["id"], "#trajectories", n],
    ]


@pytest.mark.slow
def test_a_calls_messages_are_all_turns_that_the_model_saw(play: Play, made: tuple[Config, Gathered]) -> None:
    config, records = made
    assert records.sampled is not None
    stored = [line.read() for lines in records.sampled.lines.values() for _, line in lines]
    trajectory = next(t for t in stored if len(t.model_calls) > 3)
    key = trajectory.key
    call = next(i for i, c in enumerate(trajectory.model_calls) if c.conversation == 0 and c.start > 200)
    before, texts, hidden, visible = play(
        f"""
      const call = all(".messages")[{call}];
      const before = call.children.length;
      call.open = true; call.dispatchEvent(new Event("toggle"));
      const textOf = (turn) => (turn.querySelector(".text") || turn).textContent;
      const texts = [...call.querySelectorAll(".turn")].map(textOf);
      const hidden = getComputedStyle(call.querySelector(".control")).display;
      one("#show-control").click();
      const result = () => [before, texts, hidden, getComputedStyle(call.querySelector(".control")).display];
    """,
        fragment=f"t={key}",
    )
    spans = trajectory.conversations[0].spans
    expected = MessageDecoder(config.models).decode(trajectory.conversations[0])
    end = trajectory.model_calls[call].end
    assert texts == ["".join(text) for span, text in zip(spans, expected, strict=True) if span.start < end]
    assert before == 1, "made only when it is opened"
    assert (hidden, visible) == ("none", "block")


@pytest.mark.slow
def test_old_browsers_and_damaged_pages_are_told(browser: Any, address: str, tmp_path: Path) -> None:
    with browser.new_page() as page:
        page.add_init_script("delete window.DecompressionStream")
        page.goto(address)
        page.get_by_role("alert").filter(has_text="this browser cannot decompress them. Chrome and Edge can").wait_for()
    text = Path(unquote(urlparse(address).path)).read_text()
    (tmp_path / "damaged.html").write_text(text.replace('id="chunk-0">', 'id="chunk-0">eNoD'))
    with browser.new_page() as page:
        page.goto((tmp_path / "damaged.html").as_uri())
        page.get_by_role("alert").filter(has_text="The trajectories cannot be opened: ").wait_for()
        page.locator("#questions button").last.click()
        page.locator("#runs .answer").first.wait_for()
        page.locator("#question-search").fill("what is nowhere")
        page.get_by_role("alert").filter(has_text="The trajectories cannot be searched: ").wait_for()
        page.get_by_text("No question matches.").wait_for()
