"""Every filter, by what it drops and what it must let pass."""

import pytest

from ratchet.core.records import Document
from ratchet.question_generation.filters import AcceptedQuestions, copies_run, rejection_reason, same_script
from ratchet.question_generation.prompts import Category

MILL = Document(
    "mill", "The mill at Sorrel Ford was built by Hanne Vik in 1780 to grind oats for the garrison.", "Mill"
)
PLAIN = Category(probability=1, definition="", words=(3, 12))
SEARCH = Category(probability=1, definition="", form="search")
QUESTION = "Who put up the mill at Sorrel Ford?"


@pytest.mark.parametrize(
    ("question", "answer", "category", "reason"),
    [
        (QUESTION, "Hanne Vik built it.", PLAIN, None),
        ("mill Sorrel Ford builder", "Hanne Vik", SEARCH, None),
        ("Was the mill built by Vik or by Moe?", "Vik", PLAIN, None),
        ("Mill who?", "Hanne Vik", PLAIN, "length"),
        ("Who " + "really " * 9 + "built the mill?", "Hanne Vik", PLAIN, "length"),
        (QUESTION, "", PLAIN, "length"),
        (QUESTION, "oats " * 300, PLAIN, "length"),
        ("Tell me who built the mill.", "Hanne Vik", PLAIN, "form"),
        ("Who built the mill?", "Hanne Vik", SEARCH, "form"),
        ("mill builder\nSorrel Ford", "Hanne Vik", SEARCH, "form"),
        ("Who built the mill in the document?", "Hanne Vik", PLAIN, "names its source"),
        (QUESTION, "According to the second passage, Hanne Vik.", PLAIN, "names its source"),
        (QUESTION, "Who put up the mill at Sorrel Ford", PLAIN, "answer repeats the question"),
        (QUESTION, "...", PLAIN, "answer repeats the question"),
        ("What is the answer to this?", "Hanne Vik", PLAIN, "not about its documents"),
        ("Кто построил мельницу Mill в 1780 году?", "Её построила Ханне Вик.", PLAIN, "language"),
    ],
)
def test_what_is_wrong_with_a_candidate(question: str, answer: str, category: Category, reason: str | None) -> None:
    assert rejection_reason(question, answer, [MILL], [category]) == reason


def test_a_question_may_not_be_copied_from_its_document() -> None:
    copied = "Is it so that the mill at Sorrel Ford was built by Hanne Vik in 1780?"
    assert rejection_reason(copied, "Yes, it was.", [MILL], []) == "copied from its document"
    shorter = copied.replace(" in 1780", "")
    assert rejection_reason(shorter, "Yes, it was.", [MILL], []) is None
    assert copies_run("a b c d", "x a b c y", 3) and not copies_run("a b c d", "x a b y c d", 3)


def test_a_near_copy_of_an_accepted_question_is_found() -> None:
    accepted = AcceptedQuestions()
    accepted.add("one", "Who put up the old water mill that stands at Sorrel Ford?")
    assert accepted.copy_of("who put up the old water mill that stands at Sorrel Ford") == "one"
    assert accepted.copy_of("So who put up the old water mill that stands at Sorrel Ford?") == "one"
    assert accepted.copy_of("Who put up the bridge at Sorrel Ford?") is None
    accepted.add("two", "Vik")
    assert accepted.copy_of("vik!") == "two" and accepted.copy_of("Moe") is None


def test_the_script_is_that_of_most_letters() -> None:
    assert same_script("What did Чехов write about the poor?", "The novel is long.")
    assert not same_script("O que é 水車小屋水車小屋水車小屋?", "The mill is old.")
    assert same_script("水車小屋は", "水車") and same_script("1780?", "The mill.") and same_script("mill", "1780")
