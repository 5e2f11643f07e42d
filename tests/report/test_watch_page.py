"""The page of `watch` in a real browser: list, filters, keys, narrow screens, and text that is only text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("playwright")
from playwright.sync_api import Browser, Page, expect, sync_playwright

from ratchet.config import Config
from ratchet.runfolder import RoundFolder
from sampling.store import TrajectoryStore
from tests.helpers.browser import CHROMIUM, needs_chromium
from tests.helpers.handmade_run import HOSTILE, make_run
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.watched import indexed, watched

pytestmark = [needs_chromium, pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, RoundFolder]:
    folder = tmp_path_factory.mktemp("run")
    config, number_one = make_run(folder, train=9, test=6)
    model = config.models["agent"].model_copy(update={"path": str(save_tiny_tokenizer(folder / "model"))})
    return config.model_copy(update={"models": {"agent": model}}), number_one


@pytest.fixture(scope="module")
def address(finished: tuple[Config, RoundFolder], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with watched(finished[0], tmp_path_factory.mktemp("cache")) as client:
        indexed(client)
        yield str(client.base_url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page with its list; what its scripts or its policy complain about fails the test."""
    opened = browser.new_page(viewport={"width": 1300, "height": 900})
    opened.set_default_timeout(30_000)
    problems: list[str] = []
    opened.on(
        "console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None
    )
    opened.on("pageerror", lambda error: problems.append(str(error)))

    def refuse(dialog: Any) -> None:
        problems.append("a dialog")
        dialog.dismiss()

    opened.on("dialog", refuse)
    opened.on("request", lambda request: None if request.url.startswith(address) else problems.append(request.url))
    opened.goto(address)
    opened.locator("#list button").first.wait_for()
    yield opened
    opened.close()
    assert problems == []


def test_the_page_shows_the_run(page: Page, finished: tuple[Config, RoundFolder]) -> None:
    expect(page.locator("h1")).to_have_text("Evaluate, round 1")
    row = page.locator("#store-rows tr").first
    expect(row).to_contain_text("round 1")
    expect(row).to_contain_text("72 of 72")
    expect(page.locator("#found")).to_have_text("1 to 50 of 90 trajectories")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#found")).to_have_text("51 to 90 of 90 trajectories")
    expect(page.locator("#list button")).to_have_count(40)
    expect(page.get_by_role("button", name="Next")).to_be_disabled()


def test_filters_ask_the_server_and_are_cleared(page: Page, finished: tuple[Config, RoundFolder]) -> None:
    selection = finished[1].read_selection()
    assert selection is not None
    expect(page.get_by_label("Kind of question").locator("option")).to_have_count(4)
    page.get_by_label("Kept", exact=True).select_option("yes")
    expect(page.locator("#found")).to_contain_text(f"of {len(selection.kept)} trajectories")
    keys = page.locator("#list button").evaluate_all("rows => rows.map((row) => row.dataset.key)")
    assert set(keys) == set(selection.kept)
    page.get_by_label("Words of the question").fill("nothing has these words")
    expect(page.locator("#found")).to_have_text("No trajectory passes the filters.")
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator("#found")).to_have_text("1 to 50 of 90 trajectories")


def test_hostile_text_is_shown_as_text(page: Page) -> None:
    row = page.locator("#list button").filter(has_text="<script>alert(1)</script>").first
    row.click()
    expect(page.locator("#runs .answer")).to_contain_text("<img src=x onerror=alert(2)><!-- </style> {{ 7*7 }}")
    page.locator("#runs details.hit summary").filter(has_text="<script>").first.click()
    assert page.locator("#runs img, #runs script, #list script, #runs a[href*=evil]").count() == 0
    assert HOSTILE.count("\u202e") == 1


def test_keys_go_through_the_list_and_open_a_trajectory(page: Page, finished: tuple[Config, RoundFolder]) -> None:
    page.locator("#list button").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    key = page.evaluate("document.activeElement.dataset.key")
    page.keyboard.press("Enter")
    [stored] = TrajectoryStore(finished[1].trajectories).read([key])
    expect(page.locator("#runs .events > li")).to_have_count(len(stored.events))
    page.locator("#runs .messages summary").first.click()
    expect(page.locator("#runs .messages .turn.system").first).to_be_visible()
    assert page.url.endswith(f"#t={key}")
    page.locator("#shown").focus()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.key") == key
    page.get_by_role("button", name=re.compile("^Sample 5, ")).click()
    expect(page.locator("#runs .which")).to_have_text("sample 5")


def test_a_link_opens_its_trajectory(page: Page, address: str, finished: tuple[Config, RoundFolder]) -> None:
    last = list(TrajectoryStore(finished[1].trajectories).read())[-1]
    page.goto("about:blank")
    page.goto(f"{address}/#t={last.key}")
    expect(page.locator("#runs .run")).to_have_attribute("data-key", last.key)


@pytest.mark.parametrize("width", [360, 1300])
def test_every_width_and_both_schemes_can_be_read(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.locator("#list button").first.click()
    page.locator("#runs .run").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_every_control_has_a_name(page: Page) -> None:
    page.locator("#list button").first.click()
    page.locator("#runs .run").wait_for()
    nameless = page.evaluate("""
      [...document.querySelectorAll("button, input, select, summary, a")]
        .filter((e) => e.offsetParent && !e.getAttribute("aria-label") && !e.textContent.trim())
        .filter((e) => !e.closest("label") || !e.closest("label").textContent.trim())
        .map((e) => e.outerHTML)
    """)
    assert nameless == []
    assert page.locator("[role=progressbar]").get_attribute("aria-label")
    assert page.evaluate("document.documentElement.lang") == "en"
