"""The formats of question files that several benchmarks come in, and ours.

A format is recognised by the fields of a row, and turns a row into the fields of a `Question`. `id` is
optional: the default is the row's number. Field names: FlashRAG (arXiv 2405.13576), KILT (arXiv 2009.02252).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from questions.labels import label_named, label_spellings, parse_label, set_of
from ratchet.records import Question

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


def texts(*found: Any) -> tuple[str, ...]:
    """Strings and lists of strings as one tuple, without blank ones and repeats; a list may be written as JSON."""
    return tuple(dict.fromkeys(text for one in found for text in _strings(one) if text.strip()))


def _strings(found: Any) -> Iterable[str]:
    if found is None:
        return
    if isinstance(found, str):
        yield found
    elif isinstance(found, list | tuple):
        for one in found:
            yield from _strings(one)
    else:
        raise TypeError(f"expected text or a list of texts, got {type(found).__name__}")


def json_list(text: Any) -> list[Any]:
    """A list that a table holds as JSON in one cell; a list as it is."""
    found = json.loads(text) if isinstance(text, str) else text
    if not isinstance(found, list):
        raise TypeError(f"expected a list, got {type(found).__name__}")
    return found


def supporting_titles(facts: Any) -> tuple[str, ...]:
    """Titles of supporting facts: [[title, sentence], ...] as released, {"title": [...]} as the hub has them."""
    if isinstance(facts, dict):
        return texts(facts["title"])
    return texts([title for title, _ in facts or ()])


def _flashrag(row: Row) -> Row:
    more = row.get("metadata") or {}
    return {
        "id": str(row["id"]),
        "text": row["question"],
        "answers": texts(row["golden_answers"]),
        "gold_titles": supporting_titles(more.get("supporting_facts")),
        "kind": more.get("type") or more.get("prop") or "",
    }


def _kilt(row: Row) -> Row:
    """Gold is the pages' titles: their ids are those of KILT's own copy of Wikipedia."""
    pages = [page for output in row["output"] for page in output.get("provenance") or ()]
    return {
        "id": str(row["id"]),
        "text": row["input"],
        "answers": texts([output.get("answer") for output in row["output"]]),
        "gold_titles": texts([page.get("title") for page in pages]),
    }


def _datamorgana(row: Row) -> Row:
    documents = [str(document) for document in row["document_ids"]]
    fields = {
        "text": row["question"],
        "reference": row["answer"],
        "gold_ids": documents,
        "kind": row.get("documents") or ("single-doc" if len(documents) == 1 else "multi-doc"),
    }
    return fields | ({"id": str(row["id"])} if "id" in row else {})


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


def own_fields(row: Row) -> dict[str, str]:
    """By the name that each field of a row has in the file, the field of `Question` that it is; others are ignored.

    Raises ValueError for two fields that are the same one, and for a name that is nearly a known one.
    """
    found: dict[str, str] = {}
    for name in row:
        field = ALIASES.get(name, name)
        if field in Question.model_fields:
            if field in found.values():
                first = next(key for key, value in found.items() if value == field)
                raise ValueError(f"{first} and {name} are the same field; keep one of them")
            found[name] = field
        elif close := difflib.get_close_matches(name, [*Question.model_fields, *ALIASES], n=1, cutoff=0.8):
            raise ValueError(f"{name}: unknown field (did you mean {close[0]!r}?)")
    return found


def _own(row: Row) -> Row:
    """Ours, as people write it: text or a list, numbers as ids and answers, a list as JSON in a cell of a table."""
    names = own_fields(row)
    given = {field: row[name] for name, field in names.items() if row[name] not in (None, "", [])}
    if "text" not in given:
        raise ValueError(f"text: the question is missing (the fields are {', '.join(map(str, row)) or 'none'})")
    if names.get("claim") == "text":
        given.setdefault("form", "claim")
    if isinstance(given.get("label"), bool):  # YAML-minded people write true and false without quotes
        given["label"] = str(given["label"]).lower()
    for field, value in given.items():
        if field in LISTS:
            given[field] = tuple(dict.fromkeys(_as_text(field, one) for one in _as_list(value)))
        elif field == "labels":
            given[field] = [label_named(one) if isinstance(one, str) else one for one in _as_list(value)]
        else:
            given[field] = _as_text(field, value)
    if "label" in given and "labels" not in given:
        given["labels"] = set_of(given["label"])
        given["label"] = parse_label(given["label"], label_spellings(given["labels"]))
    return given


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return [value]  # an answer that begins with a bracket
    return list(value) if isinstance(value, list | tuple) else [value]


def _as_text(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{field}: expected text, got {json.dumps(value, default=str)[:60]}")


RATCHET = Format("ratchet", ("id", "text"), _own)
FLASHRAG = Format("flashrag", ("id", "question", "golden_answers"), _flashrag)
KILT = Format("kilt", ("id", "input", "output"), _kilt)
DATAMORGANA = Format("datamorgana", ("question", "answer", "document_ids"), _datamorgana)
HOTPOT = Format("official", ("question", "answer", "supporting_facts"), _hotpot)
"""HotpotQA's release, and what follows it."""

BY_NAME = {one.name: one for one in (RATCHET, FLASHRAG, DATAMORGANA)}
"""What `format` in a config can name."""
