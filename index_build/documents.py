"""Files of documents: one JSON object {id, text, title?} a line, .gz allowed; other fields are ignored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import UserError, did_you_mean
from ratchet.files import read_jsonl


@dataclass(frozen=True)
class Document:
    id: str
    text: str
    title: str = ""


def read_documents(path: Path) -> Iterator[tuple[int, Document]]:
    """(line number, document) of one file; any bad line is a UserError that names it."""
    for line, row in read_jsonl(path, "document"):
        yield line, _document(row, f"{path}:{line}")


def _document(row: dict[str, Any], where: str) -> Document:
    if row.get("title") is None:
        row["title"] = ""
    for field in ("id", "text", "title"):
        value = row.get(field)
        if field not in row:
            raise UserError(f"{where}: a document needs a field {field!r}{did_you_mean(field, row)}")
        if not isinstance(value, str):
            raise UserError(f"{where}: {field!r} must be a string, got {type(value).__name__}")
        if field != "title" and not value.strip():
            raise UserError(f"{where}: {field!r} is empty; fill it or remove this line")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{where}: {field!r} holds half of a surrogate pair, which is no text ({error})") from error
    return Document(row["id"], row["text"], row["title"])


def check_documents(paths: Sequence[Path]) -> int:
    """Number of documents, after reading all of them once.

    So that a bad line or an id that is used twice is met in the first seconds, not after hours of building.
    """
    seen: dict[str, tuple[Path, int]] = {}
    for path in paths:
        for line, document in read_documents(path):
            if document.id in seen:
                first_path, first_line = seen[document.id]
                raise UserError(
                    f"{path}:{line}: document id {document.id!r} is already used in {first_path}:{first_line}; "
                    "ids must differ"
                )
            seen[document.id] = (path, line)
    if not seen:
        raise UserError(f"{', '.join(map(str, paths))}: no documents; an index needs at least one")
    return len(seen)
