"""The report, the page of a run that goes on and the page of `ratchet serve` in a real browser, with hostile text in
every place that data, models and names reach: all panes are opened, nothing runs, and nothing is fetched elsewhere."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import Config
from ratchet.core.records import Question, Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.report.gather import gather
from ratchet.report.page import render
from tests.helpers import handmade_run
from tests.helpers.any_system import Library, Talker
from tests.helpers.browser import needs_chromium
from tests.helpers.hostile import IN_A_PATH, NAMES
from tests.helpers.served_systems import serving
from tests.helpers.watched import watched

pytestmark = [pytest.mark.server, pytest.mark.slow, needs_chromium]

ACTIVE = (
    "\"'><img src=http://evil.example/i onerror=hacked()>",
    "<svg onload=hacked()><a xlink:href=javascript:hacked()>x</a></svg>",
    '<iframe src=http://evil.example srcdoc="<script>parent.hacked()</script>"></iframe>',
    "<object data=http://evil.example></object><embed src=http://evil.example>",
    '<meta http-equiv=refresh content="0;url=http://evil.example"><base href=http://evil.example>',
    "<form action=http://evil.example><button formaction=javascript:hacked()>x</button></form>",
    "<input autofocus onfocus=hacked()><details open ontoggle=hacked()>",
    '<a href="javascript:hacked()">x</a><a href=http://evil.example>y</a>',
    '" style="background:url(http://evil.example/s)" onmouseover="hacked()',
    "<style>@import 'http://evil.example'</style><link rel=stylesheet href=http://evil.example>",
    "</textarea></title></style></script><script>hacked()</script>",
    "${hacked()} `hacked()` __proto__ constructor",
)
"""What HTML, CSS and JavaScript would do something with, were it no text."""
POISON = " ".join([*(NAMES[what] for what in ("HTML", "entities", "marks", "template", "direction", "lines")), *ACTIVE])
FOUND = """() => {
  const found = [];
  for (const node of document.querySelectorAll("*")) {
    const at = `${node.localName}.${node.className}#${node.id}`;
    if (["iframe", "object", "embed", "base", "img", "foreignobject"].includes(node.localName)) found.push(at);
    if (node.localName === "script" && /hacked/.test(node.text)) found.push(at);
    if (node.localName === "style" && /evil/.test(node.textContent)) found.push(at);
    if (node.localName === "meta" && /refresh/i.test(node.httpEquiv)) found.push(at);
    for (const { name, value } of node.attributes) {
      const address = ["href", "xlink:href", "src", "action", "formaction", "data"].includes(name) &&
        !value.startsWith("#") && !value.startsWith("data:,") && new URL(value, location).origin !== location.origin;
      if (name.startsWith("on") || address || (name === "style" && /evil|url\\(/.test(value))) {
        found.push(`${at} ${name}=${value.slice(0, 80)}`);
      }
    }
  }
  return found;
}"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Of a run with hostile paths, questions, answers, documents, errors and arms."""
    folder = tmp_path_factory.mktemp("pages") / IN_A_PATH
    folder.mkdir()
    plain_questions, plain_trajectory = handmade_run.questions_of, handmade_run.trajectory

    def questions(split: str, count: int) -> list[Question]:
        poisoned = {"text": POISON, "kind": POISON, "answers": (POISON,), "nuggets": (POISON,)}
        return [
            one.model_copy(update=poisoned | {"id": f"{one.id} {POISON}", "text": f"{one.text} {POISON}"})
            for one in plain_questions(split, count)
        ]

    def trajectory(*given: Any, **named: Any) -> Trajectory:
        made = plain_trajectory(*given, **named | {"hostile": True})
        events = [
            one.model_copy(
                update={key: f"{getattr(one, key)} {POISON}" for key in ("text", "query") if hasattr(one, key)}
            )
            for one in made.events
        ]
        error = f"{made.error} {POISON}" if made.error else ""
        return made.model_copy(update={"events": tuple(events), "error": error, "explanation": POISON})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handmade_run, "questions_of", questions)
        patch.setattr(handmade_run, "trajectory", trajectory)
        patch.setattr(handmade_run, "HOSTILE", POISON)
        made, _ = handmade_run.make_run(folder, train=3, test=3)
    return made


@contextlib.contextmanager
def report(config: Config, folder: Path) -> Iterator[str]:
    page = folder / "report.html"
    page.write_text(render(config, gather(config, RunFolder(config.folder).round(1), 10)))
    yield page.as_uri()


@contextlib.contextmanager
def watch(config: Config, _: Path) -> Iterator[str]:
    with watched(config) as client:
        yield str(client.base_url)


@contextlib.contextmanager
def serve(_: Config, folder: Path) -> Iterator[str]:
    with serving(folder, Talker(POISON), shelf=Library(POISON)) as server:
        yield server.url


def open_questions(page: Any) -> None:
    """Each question, with all that can be opened in it, and a search that finds it."""
    page.locator("#questions button").first.wait_for()
    for section in range(page.locator("#section-switch button").count()):
        page.locator("#section-switch button").nth(section).click()
        for number in range(page.locator("#questions [data-question]").count()):
            page.locator("#questions [data-question]").nth(number).click()
            page.locator("#runs .answer").first.wait_for()
            open_details(page)
    page.locator("#question-search").fill("hacked()")
    page.locator("#questions [data-question]").first.wait_for()


def open_answers(page: Any) -> None:
    """An answer with its steps and its evidence."""
    page.wait_for_selector("#first option", state="attached")
    page.get_by_label("Question").fill(POISON)
    page.get_by_role("button", name="Ask").click()
    page.wait_for_selector("#ask:enabled")
    open_details(page)


def open_details(page: Any) -> None:
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.wait_for_timeout(100)
    assert page.evaluate(FOUND) == []


@pytest.mark.parametrize(("served", "use"), [(report, open_questions), (watch, open_questions), (serve, open_answers)])
def test_a_page(
    browser: Any, config: Config, tmp_path: Path, served: Callable[..., Any], use: Callable[[Any], None]
) -> None:
    said: list[str] = []
    with served(config, tmp_path) as url, browser.new_page() as page:
        page.on("console", lambda line: said.append(line.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("dialog", lambda dialog: dialog.dismiss())
        page.on("request", lambda asked: None if asked.url.startswith((url, "data:,")) else said.append(asked.url))
        page.add_init_script("window.hacked = () => { window.was = 'hacked'; }")
        page.goto(url)
        use(page)
        shown = page.locator("main").inner_text()
        assert "<script>hacked()</script>" in shown and "{{ 7*7 }}" in shown
        assert page.evaluate("window.was") is None and page.url.partition("#")[0].rstrip("/") == url.rstrip("/")
    assert said == []
