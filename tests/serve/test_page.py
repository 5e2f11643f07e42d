"""The page at / in a real browser: asking, comparing, stopping; and that it runs nothing but its own script."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.adapter_folders import save_adapter
from tests.helpers.any_system import Library, Talker
from tests.helpers.browser import needs_chromium
from tests.helpers.served_systems import Served, serving
from tests.helpers.waiting import wait_for

pytestmark = [pytest.mark.server, pytest.mark.slow, needs_chromium]

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("page")
    library = Library(HOSTILE)
    with serving(folder, Talker(HOSTILE), shelf=library, adapter=save_adapter(folder / "adapter")) as server:
        yield server


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    """The page, which must not complain about anything."""
    with browser.new_context() as context:
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(served.url)
        page.wait_for_selector("#first option", state="attached")
        yield page
        assert said == []


def ask(page: Any, text: str = "Who built the harbour?") -> None:
    page.get_by_label("Question").fill(text)
    page.get_by_role("button", name="Ask").click()
    page.wait_for_selector("#ask:enabled")


def test_base_and_adapter_answer_side_by_side_with_steps_and_evidence(page: Any, served: Served) -> None:
    policy = page.request.get(served.url).headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    ask(page)
    results = page.get_by_role("region").filter(has=page.locator("h2"))
    assert results.locator("h2").all_text_contents() == ["vanilla_rag:adapter", "vanilla_rag:base"]
    left, right = (results.nth(n).bounding_box() for n in (0, 1))
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]
    for n in (0, 1):
        result = results.nth(n)
        assert result.locator(".answer").inner_text() == f"harbour\n{HOSTILE}"
        assert result.get_by_role("status").first.inner_text().startswith("finished: ")
        steps = result.locator(".steps > ol > li")
        assert steps.count() == 2 and "searches: Who built the harbour?" in steps.first.inner_text()
        evidence = result.locator(".evidence li")
        assert evidence.count() == 2 and not evidence.first.locator("p").is_visible()
        evidence.first.locator("summary").click()
        assert evidence.first.locator("p").inner_text() == f"1 {HOSTILE}"


def test_claims_are_asked_of_systems_that_give_verdicts(page: Any) -> None:
    page.get_by_label("Model").select_option("verdicts:adapter")
    assert page.get_by_label("Side by side with").locator("option").all_text_contents() == ["no other", "verdicts:base"]
    page.get_by_label("Claim").fill("Ada built the harbour.")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_selector("#ask:enabled")
    assert page.locator(".answer").all_text_contents() == ["SUPPORTS"]


def test_all_of_it_works_by_the_keyboard(page: Any) -> None:
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("Who built it?")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".evidence summary")
    page.wait_for_selector("#ask:enabled")
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached[:3] == ["first", "second", "ask"] and reached.count("SUMMARY") >= 2 and "OL" in reached
    page.locator(".evidence summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".evidence p").first.is_visible()


def test_stop_ends_the_work_and_keeps_the_steps(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path, delay=60) as server, browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url)
        page.wait_for_selector("#first option", state="attached")
        page.get_by_label("Question").fill("Who?")
        page.get_by_role("button", name="Ask").click()
        page.wait_for_selector(".steps li")
        assert server.engine.running == 1 and "working: steps 1" in page.locator(".status").first.inner_text()
        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector("#ask:enabled")
        assert page.locator(".status").first.inner_text() == "stopped" and page.locator(".steps > ol > li").count() == 1
        wait_for(lambda: server.engine.running == 0)


def test_a_key_is_asked_for_where_the_server_has_one(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path, key="open-sesame") as server, browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url)
        field = page.get_by_label("Key of this server")
        field.fill("wrong")
        field.press("Enter")
        page.wait_for_selector("#problem:not(:empty)")
        assert "no valid key" in page.get_by_role("alert").inner_text()
        field.fill("open-sesame")
        page.get_by_role("button", name="Use the key").click()
        page.wait_for_selector("#first option", state="attached")
        ask(page)
        assert page.locator(".answer").first.inner_text() == "harbour"
