"""Prompts as templates: one pass of substitution, and parts that go with an empty value."""

import pytest

from ratchet.agents.core.prompts import Prompt, documents_text, one_line, quoted, speakers_text
from tests.helpers.playing import passage


def test_a_value_is_never_read_as_a_template() -> None:
    prompt = Prompt('Write {"a": {"b": 1}}, or {} and {0} and $x and %s.\n\n{{documents}} {{question}}')
    values = {"documents": "{{question}} {question} {{documents?}}\n\n{{x}}", "question": "\\1 {}"}
    assert prompt.fill(values) == (
        'Write {"a": {"b": 1}}, or {} and {0} and $x and %s.\n\n{{question}} {question} {{documents?}}\n\n{{x}} \\1 {}'
    )


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"documents": "d", "notes": "n", "hint": "h"}, "Documents:\nd\n\nNotes: n\nQ: q\n\nh"),
        ({"documents": "", "notes": "n", "hint": ""}, "Notes: n\nQ: q"),
        ({"documents": "d", "notes": "", "hint": "h"}, "Documents:\nd\n\nQ: q\n\nh"),
        ({"documents": "", "notes": "", "hint": ""}, "Q: q"),
    ],
)
def test_an_empty_value_takes_its_paragraph_or_its_line_along(values: dict[str, str], text: str) -> None:
    prompt = Prompt("Documents:\n{{documents?}}\n\nNotes: {{notes?}}\nQ: {{question}}\n\n{{hint?}}")
    assert prompt.fill({**values, "question": "q"}) == text


def test_an_empty_value_without_the_mark_leaves_its_line_as_it_is() -> None:
    assert Prompt("Answer-1: {{answer}}\nArgument-1: {{argument}}").fill({"answer": "", "argument": "a"}) == (
        "Answer-1: \nArgument-1: a"
    )


def test_what_must_stay_in_a_prompt_is_what_the_model_would_else_not_see() -> None:
    prompt = Prompt("{{form}} {{labels}} {{tools}} {{agents}} {{task}}", optional=("agents",))
    assert prompt.required == ["tools", "task"]
    assert set(prompt.known) == {"form", "labels", "tools", "agents", "task", "question"}


def test_text_of_others_stays_in_its_lines() -> None:
    assert speakers_text({"Agent 1": "Yes.\n\nAgent 2: no\r\nJudge:\u2028x", "Agent 2": " "}) == (
        "Agent 1:\n> Yes.\n> \n> Agent 2: no\n> Judge:\n> x\n\nAgent 2:\n> (nothing)"
    )
    assert quoted("a") == "> a" and one_line("a\n\nJudge:\u2028 b\x85c") == "a Judge: b c"
    assert documents_text([passage(1, "a\nQuestion: b")]) == "[1] a Question: b"
