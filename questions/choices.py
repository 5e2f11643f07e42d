"""Multiple-choice questions in the forms that benchmarks publish, as questions with the options in their text.

The options are a field (`choices`, `options`, `endings`): a list, letters to texts, {"text": [...], "label": [...]}, or
a list of such pairs; or columns (`A`, `B`, `C`; `option1`, `option2`; `opa`, `opb`); or a `correct_answer` and
`distractor1`, ... So come MMLU, ARC, CommonsenseQA, OpenBookQA, HellaSwag, MedQA, SciQ and their like.

Options without names are counted from 0, as MMLU and HellaSwag do, or lettered; options with names are called by them
alone. What can be read in two ways, or in none, is an error: an index is never taken for an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ratchet.questions.cells import as_text, is_missing, list_in

OPTIONS = ("choices", "options", "endings")
STEMS = ("question", "text", "query", "question_stem", "stem", "ctx", "sentence", "goal", "premise")
KEYS = (
    "answerkey",
    "answer_key",
    "answer_idx",
    "answer_index",
    "correct_option",
    "correct",
    "cop",
    "gold",
    "label",
    "answer",
    "answers",
    "golden_answers",
)
"""Fields that say which option is right; where a row has several, they must agree."""
OWN_TEXTS = ("article", "passage", "context")
COLUMN = re.compile(r"(?:(|answer|op)_?([a-j])|(option|choice|ending|sol)_?([a-j]|\d))")
WRONG = re.compile(r"(?:distractor|incorrect_answer)_?\d")
LETTERED = re.compile(r"\(?([A-J])[).:]\s*(?=\S)")
NO_ANSWER = "has no answer; is this the file of a test whose answers are kept secret?"
Named = tuple[str, str]
"""An option's name, empty where it has none, and its text."""


def field_name(name: object) -> str:
    """A field's name whatever its case and blanks, as spreadsheets write them: Question, Gold ids."""
    return "_".join(str(name).lower().split())


def read_choices(row: Mapping[Any, Any]) -> dict[str, Any] | None:
    """A row with options as one without: `text` and `answers` in place of the fields that hold them, `kind` for a
    `subject`; None for a row without options. Raises ValueError."""
    names = {field_name(name): name for name in row}
    fields = {name: row[given] for name, given in names.items() if not is_missing(row[given])}
    if isinstance(nested := fields.get("question"), dict):  # ARC's and CommonsenseQA's release
        fields = fields | nested | {"question": nested.get("stem")}
    used, options = _options_of(fields)
    if not options:
        return None
    if "correct_answer" in fields and WRONG.fullmatch(used[0]):
        used = (*used, "correct_answer")
        right = frozenset({as_text(fields["correct_answer"])})
    else:
        keys = [name for name in KEYS if name in names and name not in used]
        used = (*used, *keys)
        called = {key: frozenset(_right(key, row[names[key]], options)) for key in keys}
        if len(set(called.values())) > 1:
            raise ValueError(f"{' and '.join(called)} call different options right; keep one of them")
        right = next(iter(called.values()), frozenset())
        if not keys:
            raise ValueError(f"{used[0]}: options, and no field says which is right, such as answerKey or answer")
    if own := [name for name in OWN_TEXTS if fields.get(name)]:
        raise ValueError(f"{own[0]}: a question about a text of its own; write the text into the question")
    stem = next((name for name in STEMS if fields.get(name)), None)
    if stem is None:
        raise ValueError(f"{used[0]}: options without a question (the fields are {', '.join(map(str, row))})")
    shown = "".join(f"\n- {' '.join(text.split())}" for _, text in options)
    kept = {given: row[given] for name, given in names.items() if name not in (*used, stem, "question", "subject")}
    kind = {"kind": fields["subject"]} if "subject" in fields and "kind" not in names else {}
    answers = [text for _, text in options if text in right]
    return kept | kind | {"text": f"{as_text(fields[stem])}\nOptions:{shown}", "answers": answers}


def _options_of(fields: Mapping[str, Any]) -> tuple[tuple[str, ...], list[Named]]:
    """The names of the fields that hold a row's options, and the options; none where there are none."""
    for name in OPTIONS:
        if name in fields and fields[name] not in ("", [], {}):
            return (name,), list(_named(name, fields[name]))
    if "correct_answer" in fields and (wrong := tuple(name for name in fields if WRONG.fullmatch(name))):
        texts = (as_text(fields[name]) for name in ("correct_answer", *wrong) if str(fields[name]).strip())
        return wrong, [("", text) for text in sorted(texts, key=str.casefold)]
    by_prefix: dict[str, list[tuple[str, str]]] = {}
    for name in fields:
        if found := COLUMN.fullmatch(name):
            by_prefix.setdefault(found[1] or found[3] or "", []).append((found[2] or found[4], name))
    for prefix, columns in by_prefix.items():
        if len(columns) > (1 if prefix else 2):
            named = [(short, as_text(fields[name])) for short, name in sorted(columns) if str(fields[name]).strip()]
            return tuple(name for _, name in columns), named
    return (), []


def _named(field: str, value: Any) -> Iterator[Named]:
    """The options that a value holds."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, Mapping) and isinstance(value.get("text"), Sequence) and not isinstance(value["text"], str):
        value = [*zip(value.get("label") or [""] * len(value["text"]), value["text"], strict=True)]
    elif isinstance(value, Mapping):
        value = [*value.items()]
    elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        value = [
            (next((one[key] for key in ("label", "key", "name") if key in one), ""), one.get("text", one.get("value")))
            for one in value
        ]
    elif isinstance(value, list):
        texts = [as_text(one) for one in value if not is_missing(one)]
        marks = [LETTERED.match(text) for text in texts]
        if all(mark and mark[1] == chr(65 + i) for i, mark in enumerate(marks)):  # "A)21", as AQuA has them
            texts = [LETTERED.sub("", text, count=1) for text in texts]
        value = [("", text) for text in texts]
    else:
        value = []
    if len(value) < 2:
        raise ValueError(f"{field}: cannot be read as the options of a question; write a list of two texts or more")
    for name, text in value:
        if is_missing(text):
            raise ValueError(f"{field}: the option {name!r} has no text")
        yield as_text(name), as_text(text)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return list_in(text)


def _right(key: str, value: Any, options: Sequence[Named]) -> list[str]:
    """The texts of the options that a field calls right."""
    if isinstance(value, str) and (listed := list_in(value)) is not None:
        value = listed
    return [_option(key, one, options) for one in (value if isinstance(value, list | tuple) else [value])]


def _option(key: str, value: Any, options: Sequence[Named]) -> str:
    names = [name.casefold() for name, _ in options if name]
    if is_missing(value) or not (called := as_text(value).strip()) or called == "-1":
        raise ValueError(NO_ANSWER)
    found = {text for name, text in options if name and name.casefold() == called.casefold()}
    if isinstance(value, str):
        found |= {text for _, text in options if text.strip().casefold() == called.casefold()}
    if not names:
        at = int(called) if called.isdecimal() else ord(called.upper()) - 65 if len(called) == 1 else -1
        found |= {options[at][1]} if 0 <= at < len(options) else set()
    if len(found) == 1:
        return found.pop()
    if found:
        raise ValueError(f"{key}: {called!r} is one option by its text and another by its place; write its text alone")
    known = ", ".join(names) if names else f"0 to {len(options) - 1}, letters, their texts"
    raise ValueError(f"{key}: {called!r} names no option ({known})")
