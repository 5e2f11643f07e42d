"""The formats of question files that several benchmarks come in, and ours.

A format is recognised by the fields of a row, and turns a row into the fields of a `Question`. `id` is
optional: the default is the row's number. Field names: FlashRAG (arXiv 2405.13576).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ratchet.core.records import Question
from ratchet.questions.cells import Cell, as_text, is_missing, list_in
from ratchet.questions.choices import field_name, read_choices
from ratchet.questions.labels import NO_LABEL, is_hidden, label_named, parse_label, set_of

Row = dict[str, Any]


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


def texts(*values: Any) -> tuple[str, ...]:
    """Texts, numbers and lists of them as one tuple, without missing and blank ones and repeats; JSON's true and false
    are yes and no.

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
    """The list that a cell writes, or its text."""
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
    "answer": "answers",
    "reference_answer": "reference",
    "gold_id": "gold_ids",
    "gold_title": "gold_titles",
}
"""Other names of a question's fields, as question files have them."""
LISTS = ("answers", "nuggets", "gold_ids", "gold_titles")


NO_SEPARATOR = "none"
SEPARATORS = (";", "|")
"""What lists in a text are written with, other than commas, which answers hold."""
SEPARATED = ("answer", "answers", "golden_answers")
SHORT = 6
"""The most words of a part: the parts of a sentence with a semicolon are longer than answers in a list."""
ALSO_SEPARATED = ("gold_id", "gold_ids", "gold_title", "gold_titles")


def separate(row: Row, separator: str | None) -> Row:
    """A row whose answers, and gold documents, that are one text are lists of what stands between separators.

    Raises ValueError where `separator` is None and an answer may be one or several.
    """
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
    """By the name that each field of a row has in the file, the field of `Question` that it is; others are ignored.

    Raises ValueError for two fields that are the same one, and for a name that is nearly a known one.
    """
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
"""What `format` in a config can name."""
