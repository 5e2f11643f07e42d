"""What a judge's prompts are made of: one template, which is filled in with JSON values.

Each variable of a template is filled in as a JSON value: a quoted string cannot pose as another field, whatever an
answer or a document says. In our own prompts the fields that most calls share come first (question, expected output,
response), so that an engine's prefix cache serves them all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ratchet.agents.core.prompts import Prompt, Prompts
from ratchet.agents.core.task import labels_text, task_text
from ratchet.core.records import Question, content_key

FORM = 3
"""Raise it when a reply's fields, how they are read, or the material's layout change: stored verdicts of another form
are not reused."""


def version_of(*parts: Any) -> str:
    """12 hexadecimal digits of the texts that a judged score asks with."""
    return content_key(FORM, *parts)[:12]


def template(instructions: str, fields: Sequence[str], note: str) -> Prompt:
    """Instructions, then one JSON object with a variable for each field."""
    material = ",\n".join(f' "{name}": {{{{{name}}}}}' for name in fields)
    return Prompt(f"{instructions}\n\n{{\n{material}\n}}", note=note)


def fill(prompts: Prompts, slot: str, question: Question, **material: Any) -> str:
    """The prompt of a slot, with `material` and the variables that every prompt knows
    (`agents.core.prompts.TASK`), all but the question's form as JSON."""
    task = {"question": question.text, "task": task_text(question), "labels": labels_text(question.labels)}
    values = {name: _json(value) for name, value in (task | material).items()}
    return prompts[slot].fill({"form": question.form, **values})


def _json(value: Any) -> str:
    """A value as it stands in a JSON object that is indented by one blank."""
    return json.dumps(value, ensure_ascii=False, indent=1).replace("\n", "\n ")


def expected_output(question: Question) -> str:
    """The expected output of a question, for the judge: the reference, or the short answers, or the nuggets."""
    return question.reference or "; ".join(question.answers) or "\n".join(question.nuggets)


def without_expected_output(question: Question) -> str:
    """Why a score that compares with the expected output cannot be given; empty where it can."""
    return "" if expected_output(question) else "the question has no reference, answers or nuggets"


def replaced_texts(prompts: Prompts, own: Prompts) -> str:
    """12 hexadecimal digits of the texts in `prompts` that are not those of `own`, of its slots; "" where all are."""
    replaced = {slot: prompts[slot].text for slot in own if prompts[slot].text != own[slot].text}
    return content_key("prompts", replaced)[:12] if replaced else ""
