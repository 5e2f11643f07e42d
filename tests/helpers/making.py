"""What the tests of question_generation share: a small corpus in pairs, and a model that writes and checks by rule."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from ratchet.core.config import GenerationConfig, parse
from ratchet.core.records import Document
from ratchet.inference.completion import Message, SamplingParams
from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.tiny import tiny_format

Given = dict[str, Any]
SYLLABLES = ("bal", "cor", "dun", "fey", "gol", "hax", "jor", "kel", "lum", "mor")


def name(number: int) -> str:
    """A name of one document's own."""
    return "".join(SYLLABLES[int(digit)] for digit in f"{number:03d}").capitalize()


def corpus(count: int) -> list[Document]:
    """Documents by fives share a river that no other document names."""
    return [
        Document(
            f"d{number}",
            f"The kiln of {name(number)} stands on the river {name(number // 5)}wen. It was first lit in "
            f"{1100 + number} by {name(number)}a, a potter, and has burnt ever since, fed with wood from the hills.",
            f"{name(number)} kiln",
        )
        for number in range(count)
    ]


def settings(**changes: Any) -> GenerationConfig:
    given = {"out": "unused", "questions": {"train": 6, "dev": 3, "test": 3}, "document_words": [5, 200], **changes}
    return parse(GenerationConfig, given, "the test's settings")


def given(prompt: str) -> Given:
    """The material that a prompt begins with."""
    return dict(json.JSONDecoder().raw_decode(prompt)[0])


def write(material: Given, prompt: str) -> str:
    """A good pair that names all its documents, in the form that is asked for."""
    first, last = (material["documents"][at]["title"].split()[0] for at in (0, -1))
    question = f"Did {first} or {last}a light {first} kiln near {last}wen?"
    if "search box" in prompt:
        question = f"{first} {last}a {first} kiln {last}wen"
    pair = {"question": question, "answer": f"The potter lit {first} kiln long ago."}
    if "first_question" in prompt:
        pair = {"first_question": "What is a kiln?", "first_answer": "An oven.", **pair}
    return json.dumps(pair)


def check(reason: str = "fine", **findings: bool) -> str:
    return json.dumps({"reason": reason, "stands_alone": True, "answerable": True, "supported": True, **findings})


def model(
    write: Callable[[Given, str], str] = write,
    check: Callable[[Given], str] = lambda _: check(),
    **about: Any,
) -> ScriptedEngine:
    def reply(_: str, params: SamplingParams, messages: Sequence[Message]) -> str:
        prompt = messages[-1]["content"]
        material = given(prompt)
        return check(material) if "answer" in material else write(material, prompt)

    return ScriptedEngine(tiny_format(), reply, **about)
