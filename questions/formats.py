"""The formats of question files that several benchmarks come in, and ours: rows, the values in them, and options.

A format is recognised by the fields of a row, and turns a row into the fields of a `Question`. `id` is
optional: the default is the row's number. Field names: FlashRAG (arXiv 2405.13576).

Values: numbers and lists may be texts, since a table has to write a list as text.

Multiple-choice questions become questions with the options in their text. The options are a field (`choices`,
`options`, `endings`): a list, letters to texts, {"text": [...], "label": [...]}, or a list of such pairs; or columns
(`A`, `B`, `C`; `option1`, `option2`; `opa`, `opb`); or a `correct_answer` and `distractor1`, ... So come MMLU, ARC,
CommonsenseQA, OpenBookQA, HellaSwag, MedQA, SciQ and their like. Options without names are counted from 0, as MMLU and
HellaSwag do, or lettered; options with names are called by them alone. What can be read in two ways, or in none, is an
error: an index is never taken for an answer.
"""

from __future__ import annotations

import ast
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from ratchet.core.records import Question
from ratchet.questions.labels import NO_LABEL, is_hidden, label_named, parse_label, set_of

Row = dict[str, Any]


# Values

ITEM = re.compile(
    r"""([\s,]*)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"""
    r"""|None|null|nan|NaN)(?=[\s,'"]|$)""",
    re.DOTALL,
)
"""An item, a quoted text or a number, of a list that Python or NumPy printed, and what parts it from the last one."""
PRINTED = re.compile(r"array\((\[.*\])(?:,\s*dtype=[^\s\[\]]+)?\)|(\[.*\]|\(.*\)|\{.*\})", re.DOTALL)
OPENING = re.compile(r"""\[['"]|array\(\[""")
MISSING = frozenset({"None", "null", "nan", "NaN"})


class Cell(str):
    """The text of a table's cell. A table knows no types, so a list is written as text in it; JSON and Parquet do."""

    __slots__ = ()


def is_missing(value: Any) -> bool:
    """Tell whether a value is missing: null, or the NaN that tables of numbers have in its place."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def as_text(value: Any) -> str:
    """A text as it is, a number in digits (1912.0, as a column has it beside a null, is 1912), and a date or time of
    Parquet in ISO 8601 (midnight is its day). Raises ValueError for anything else."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, datetime):
        return str(value.date() if value.time() == time() else value)
    if isinstance(value, date | time):
        return str(value)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value):
        return str(int(value)) if value == int(value) else format(Decimal(str(value)), "f")
    raise ValueError(f"expected text, got {json.dumps(value, default=str)[:60]}")


def list_in(text: str) -> list[Any] | None:
    """The list that a text writes: as JSON, or as Python or NumPy print one (['Ada' 'Bo']); None where it is no list.

    Round and curly brackets hold a list only around quoted texts: (0, 1) is an interval. Raises ValueError for square
    brackets, or the beginning of a list of texts, that cannot be read: such a text is not taken for one answer.
    """
    text = text.strip()
    printed = PRINTED.fullmatch(text)
    if not printed and not OPENING.match(text):
        return None
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        items = _printed_list(printed[1] or printed[2]) if printed else None
    if not isinstance(items, list) and text[0] not in "({":
        raise ValueError(
            f"{text[:60]!r} cannot be read as a list; write it as JSON, "
            '["one", "two"], also where it is a single answer in brackets, ["[Ar]"]'
        )
    return items if isinstance(items, list) else None


def _printed_list(text: str) -> list[Any] | None:
    body, between, items, end = text[1:-1], "", list[str](), 0
    while item := ITEM.match(body, end):  # from item to item: a search would read the rest from every quote again
        between += item[1]
        items.append(item[2])
        end = item.end()
    if body[end:].strip(" \t\r\n,") or (
        text[0] in "({" and not ("," in between + body[end:] and all(item[0] in "'\"" for item in items))
    ):
        return None
    try:
        return [None if item in MISSING else ast.literal_eval(item) for item in items]
    except (ValueError, SyntaxError):
        return None


def texts(*values: Any) -> tuple[str, ...]:
    """Texts, numbers and lists of them as one tuple, without missing and blank ones and repeats; JSON's true is "yes".

    Raises ValueError for anything else, and for a list in a table's cell that cannot be read.
    """
    return tuple(dict.fromkeys(text for value in values for text in _texts(value) if text.strip()))


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, Cell):
        value = _read_cell(value)
    if isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, bool):
        yield "yes" if value else "no"
    elif not is_missing(value):
        yield as_text(value)


def _read_cell(cell: str) -> list[Any] | str:
    items = list_in(cell)
    return str(cell) if items is None else items


def json_list(text: Any) -> list[Any]:
    """A list that a table holds as JSON in one cell; a list as it is."""
    items = json.loads(text) if isinstance(text, str) else text
    if not isinstance(items, list):
        raise TypeError(f"expected a list, got {type(items).__name__}")
    return items


def supporting_titles(facts: Any) -> tuple[str, ...]:
    """Titles of supporting facts: [[title, sentence], ...] as released, {"title": [...]} as the hub has them, or either
    as JSON in a text."""
    if isinstance(facts, str):
        facts = json.loads(facts)
    if isinstance(facts, dict):
        return texts(facts["title"])
    return texts([title for title, _ in facts or ()])


# Options

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
    """The names of the fields that hold a row's options, and the options."""
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
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = list_in(value)
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


def _right(key: str, value: Any, options: Sequence[Named]) -> list[str]:
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


# Formats


@dataclass(frozen=True)
class Format:
    """A way in which rows are written, and how to read them."""

    name: str
    keys: tuple[str, ...]
    """A row that has all of these fields is in this format."""
    read: Callable[[Row], Row]
    """Raises KeyError, TypeError or ValueError where a row is not as it should be."""

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.keys)})"


def _flashrag(row: Row) -> Row:
    choices = read_choices(row)
    golden, more = row["golden_answers"], row.get("metadata") or {}
    more = json.loads(more) if isinstance(more, str) else more
    return {
        "id": as_text(row["id"]),
        "text": choices["text"] if choices else row["question"],
        # A list, so its text writes one.
        "answers": texts(choices["answers"] if choices else Cell(golden) if isinstance(golden, str) else golden),
        "gold_titles": supporting_titles(more.get("supporting_facts")),
        "kind": more.get("type") or more.get("prop") or "",
    }


def _datamorgana(row: Row) -> Row:
    documents = texts(row["document_ids"])
    fields = {
        "text": row["question"],
        "reference": row["answer"],
        "gold_ids": documents,
        "kind": row.get("documents") or ("single-doc" if len(documents) == 1 else "multi-doc"),
    }
    return fields | ({"id": as_text(row["id"])} if "id" in row else {})


def _hotpot(row: Row) -> Row:
    return {
        "id": row["_id"] if "_id" in row else row["id"],
        "text": row["question"],
        "answers": texts(row["answer"]),
        "gold_titles": supporting_titles(row["supporting_facts"]),
        "kind": row.get("type") or "",
    }


ALIASES = {
    "question": "text",
    "query": "text",
    "claim": "text",
    "question_id": "id",
    "query_id": "id",
    "qid": "id",
    "_id": "id",
    "answer": "answers",
    "reference_answer": "reference",
    "gold_id": "gold_ids",
    "gold_title": "gold_titles",
}
"""Other names of a question's fields, as question files have them."""
LISTS = ("answers", "nuggets", "gold_ids", "gold_titles")


NO_SEPARATOR = "none"
SEPARATORS = (";", "|")
"""Marks between the parts of a list in a text. Commas are none: answers hold them."""
SEPARATED = ("answer", "answers", "golden_answers")
SHORT = 6
"""The most words of a part: the parts of a sentence with a semicolon are longer than answers in a list."""
ALSO_SEPARATED = ("gold_id", "gold_ids", "gold_title", "gold_titles")


def separate(row: Row, separator: str | None) -> Row:
    """Split the answers and gold documents of a row that are one text. Raises ValueError where `separator` is None and
    an answer may be one or several."""
    lists: Row = {}
    for name, value in row.items():
        if not isinstance(value, str) or (isinstance(value, Cell) and list_in(value) is not None):
            continue
        if separator is None and field_name(name) in SEPARATED:
            for mark in SEPARATORS:
                parts = _parts(value, mark)
                is_short = all(len(part.split()) <= SHORT for part in parts)
                if len(parts) > 1 and is_short and read_choices(row) is None:
                    raise ValueError(
                        f'{name}: is {value[:60]!r} one answer or several? Say so by questions.separator: "{mark}" or '
                        "none (in evaluation.benchmarks: their `separator`; ratchet init: --separator), or write a list"
                    )
        elif separator not in (None, NO_SEPARATOR) and field_name(name) in (*SEPARATED, *ALSO_SEPARATED):
            lists[name] = _parts(value, separator)
    return row | lists if lists and read_choices(row) is None else row


def _parts(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def own_fields(row: Row) -> dict[str, str]:
    """The row's names of fields to those of `Question`; other fields are ignored. Raises ValueError for two names of
    one field, and for a name that is nearly a known one."""
    fields: dict[str, str] = {}
    for name in row:
        known = field_name(name)
        field = ALIASES.get(known, known)
        if field in Question.model_fields:
            if field in fields.values():
                first = next(key for key, value in fields.items() if value == field)
                raise ValueError(f"{first} and {name} are the same field; keep one of them")
            fields[name] = field
        elif close := difflib.get_close_matches(known, [*Question.model_fields, *ALIASES], n=1, cutoff=0.8):
            raise ValueError(f"{name}: unknown field (did you mean {close[0]!r}?)")
    return fields


def _own(row: Row) -> Row:
    """Ours, as people write it: text or a list, numbers as ids and answers, a list as text in a cell of a table."""
    row = read_choices(row) or row
    names = own_fields(row)
    given = {name: row[key] for key, name in names.items() if not is_missing(row[key]) and row[key] not in ("", [])}
    if "text" not in given:
        raise ValueError(f"text: the question is missing (the fields are {', '.join(map(str, row)) or 'none'})")
    if any(field == "text" and name.lower().strip() == "claim" for name, field in names.items()):
        given.setdefault("form", "claim")
    hidden = [name for name, field in names.items() if field == "label" and is_hidden(row[name])]
    if hidden and not {"answers", "reference", "nuggets"} & given.keys():
        raise ValueError(NO_LABEL)
    if isinstance(given.get("label"), bool):  # YAML-minded people write true and false without quotes
        given["label"] = str(given["label"]).lower()
    for field, value in given.items():
        try:
            if field in LISTS:
                given[field] = texts(value)
            elif field == "labels":
                listed = _read_cell(value) if isinstance(value, Cell) else value
                labels = listed if isinstance(listed, list | tuple) else [listed]
                given[field] = [label if isinstance(label, dict) else label_named(as_text(label)) for label in labels]
            else:
                given[field] = as_text(value)
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from error
    if "label" in given and "labels" not in given:
        given["labels"] = set_of(given["label"])
        given["label"] = parse_label(given["label"], given["labels"])
    return given


RATCHET = Format("ratchet", ("id", "text"), _own)
FLASHRAG = Format("flashrag", ("id", "question", "golden_answers"), _flashrag)
DATAMORGANA = Format("datamorgana", ("question", "answer", "document_ids"), _datamorgana)
HOTPOT = Format("official", ("question", "answer", "supporting_facts"), _hotpot)
"""HotpotQA's release, and what follows it."""

BY_NAME = {known.name: known for known in (RATCHET, FLASHRAG, DATAMORGANA)}
"""Formats that `format` in a config can name."""
