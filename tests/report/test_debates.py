"""Debates and loops on the page: who said what in which round, and from which evidence."""

from pathlib import Path
from typing import Any

import pytest

from ratchet.report.gather import Gathered
from ratchet.report.view import _passage
from tests.helpers.browser import needs_chromium
from tests.helpers.handmade_debate import make_debates, page
from tests.helpers.handmade_run import HOSTILE
from tests.helpers.reported import gathered as read
from tests.helpers.reported import page as whole_page
from tests.report.test_page import Page


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Gathered, str]:
    config, folder = make_debates(tmp_path_factory.mktemp("debates"))
    return read(config, folder), whole_page(config, folder)


def runs(text: str) -> list[dict[str, Any]]:
    question: dict[str, Any] = Page(text).data["sections"][0]["questions"][0]
    assert question["label"] == "SUPPORTS" and question["answers"] == ["SUPPORTS"]
    return list(question["runs"])


def test_turns_hold_what_was_asked_read_said_and_measured(gathered: tuple[Gathered, str]) -> None:
    base, looped = runs(gathered[1])
    first, second = base["turns"][:2]
    assert (first["round"], first["speaker"], first["query"], first["verdict"]) == (1, "rag", "keeper", "REFUTES")
    assert first["scores"] == [["faithfulness", 0.25], ["relevance", None]], "null is not zero"
    assert second["said"] == HOSTILE
    passages = Page(gathered[1]).data["passages"]
    assert [passages[hit]["text"] for hit in first["hits"]] == ["What rolls says."]
    assert [passages[hit]["title"] for hit in second["hits"]] == [HOSTILE]
    assert (base["stopped"], looped["stopped"]) == ("judge after round 2", "budget of 3 steps")
    assert base["explanation"].startswith("Because of the books.")


def test_tools_and_memory_are_among_the_events(gathered: tuple[Gathered, str]) -> None:
    base, looped = runs(gathered[1])
    assert [event["kind"] for event in base["events"]] == ["search", "tool", "search"]
    assert base["events"][2]["source"] == "wikipedia"
    recall, refused, counted = looped["events"]
    assert recall["entities"] == ["Orvane", HOSTILE] and [hit for hit, _ in recall["hits"]] == ["remembered"]
    assert refused["error"] == HOSTILE and refused["arguments"] == '{"id": "x"}' and counted["text"] == HOSTILE


def test_one_id_with_two_texts_keeps_both() -> None:
    """As a web page that changed, or that was summarised for another claim."""
    passages: dict[str, Any] = {}
    names = [_passage(page("rolls", text), passages) for text in ("as it was", "as it is", "as it was")]
    assert [passages[name]["text"] for name in names] == ["as it was", "as it is", "as it was"]
    assert names[0] == names[2] == "rolls" != names[1]


@pytest.mark.slow
@needs_chromium
def test_a_browser_shows_rounds_as_columns_and_steps_as_rows(
    browser: Any, gathered: tuple[Gathered, str], tmp_path: Path
) -> None:
    (tmp_path / "report.html").write_text(gathered[1])
    with browser.new_page() as page:
        page.goto((tmp_path / "report.html").as_uri())
        page.locator("#runs .transcript").nth(1).wait_for()
        talk, steps = page.evaluate(
            "[...document.querySelectorAll('.transcript')].map(one =>"
            " [...one.rows].map(row => [...row.cells].map(cell => cell.textContent)))"
        )
    assert talk[0] == ["", "round 1", "round 2"]
    assert [row[0] for row in talk[1:]] == ["rag", "search", "judge"]
    assert "“keeper”" in talk[1][1] and "What rolls says." in talk[1][1] and "faithfulness 0.25" in talk[1][1]
    assert "relevance null" in talk[1][1] and "REFUTES" in talk[1][1]
    assert HOSTILE in talk[2][1], "as text, to the letter"
    assert talk[3][1] == "" and "The harbour book decides." in talk[3][2]
    assert steps[0] == ["executor", "looked up", "said"]
    assert [row[0] for row in steps[1:]] == ["step 1", "step 2", "step 3"]
    assert "“fetch 2”" in steps[2][1] and steps[2][2] == "Thought 2."
