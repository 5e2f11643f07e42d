"""Sources of documents: JSONL and JSONL.gz, Parquet, and folders of files; a document is an id, a text, a title.

Fields and columns other than these three are ignored. An id that is an integer becomes its decimal string. A JSONL row
that has `contents` in place of `text`, as FlashRAG's corpora do, has its title in their first line. A document with a
title and no text (blank or null) is its title. Tags of HTML, JATS and MathML in a text or title are read as
`without_tags` says, and an id is in Unicode's NFC.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.core.errors import RowErrors, UserError, did_you_mean, raise_error
from ratchet.core.files import open_regular, read_jsonl
from ratchet.core.parquet import parquet_rows
from ratchet.core.records import document_id
from ratchet.core.tags import without_tags
from ratchet.index_build.folder import MARKUP_SUFFIXES, TEXT_SUFFIXES, Listing, cannot_read, folder_listing, folder_rows
from ratchet.retrieval.index import key_hash

READ = "A folder is read for its text, Markdown, HTML and PDF files; JSONL and Parquet files are named one by one"
FIELDS = ("id", "text", "title")
ROWS = 128
"""Rows of a Parquet file that are in memory at once, however large its row groups are."""
SUSPECTS = 100_000
"""Hashes of ids whose documents are compared in one pass when hashes meet."""


@dataclass(frozen=True)
class Document:
    """A document as it is read from a source."""

    id: str
    text: str
    title: str = ""


@dataclass(frozen=True)
class ScannedSource:
    """A source whose documents can all be used."""

    path: Path
    documents: int
    skipped: str
    """The files of a folder that are not read, by suffix; '' for a file and where all are read."""


def read_documents(
    path: Path, skip: int = 0, on_error: Callable[[UserError], None] = raise_error
) -> Iterator[tuple[int, Document]]:
    """(number, document) of one source after its first `skip` documents.

    A bad document is a UserError that names it, which goes to `on_error`; where that does not raise it, the document is
    skipped.

    The number counts from 1: the line of a JSONL file (blank lines hold no document, but count), the row of a Parquet
    file, or the file of a folder, whose id is its path below the folder and whose title is its name without suffix.
    Skipped documents are not checked: row groups are skipped, lines are read but not parsed.
    """
    for number, _, document in _read(path, skip, on_error):
        yield number, document


def source_files(path: Path) -> list[Path]:
    """The files that a source is read from, in that order: the path itself, or the files of a folder."""
    return [path / name for name in folder_listing(path).read] if path.is_dir() else [path]


def scan_documents(
    paths: Sequence[Path], on_document: Callable[[Document], None] = lambda document: None
) -> tuple[ScannedSource, ...]:
    """Read all sources once; folders are listed once.

    Bad documents and ids that are used twice are found now, not after hours of building: a UserError that names all of
    them by file and line. Takes 16 bytes of memory a document. `on_document` is called with each sound one.
    """
    hashes = array("Q")
    bad = RowErrors("documents")
    scanned: list[ScannedSource] = []
    for path in paths:
        first = len(hashes)
        skipped = ""
        try:
            listing = folder_listing(path) if path.is_dir() else None
            skipped = listing.skipped_text if listing else ""
            for _, _, document in _read(path, 0, bad.add, listing):
                hashes.append(key_hash(document.id))
                on_document(document)
        except UserError as error:  # the file itself cannot be read on from here
            bad.add(error)
        scanned.append(ScannedSource(path, len(hashes) - first, skipped))
    for document, where, before in repeated_documents(paths, hashes, lambda document: document.id):
        bad.add(UserError(f"{where}: document id {document.id!r} is already used in {before}; ids must differ"))
    bad.check(len(hashes))
    if not hashes:
        not_read = "".join(f". Not read: {source.skipped}. {READ}" for source in scanned if source.skipped)
        raise UserError(f"{', '.join(map(str, paths))}: no documents; an index needs at least one{not_read}")
    return tuple(scanned)


def repeated_documents(
    paths: Sequence[Path], hashes: array[int], value: Callable[[Document], str]
) -> Iterator[tuple[Document, str, str]]:
    """(document, where, where the first one is) of each document whose value another one before it has.

    `hashes`: key_hash of the value of every sound document. Sources are read again only where two are equal.
    """
    ordered = np.sort(np.frombuffer(hashes, np.uint64))
    suspects = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    for at in range(0, len(suspects), SUSPECTS):
        wanted = frozenset(suspects[at : at + SUSPECTS].tolist())
        seen: dict[str, str] = {}
        for path in paths:
            with contextlib.suppress(UserError):  # of a file that could not be read on: it was reported
                for _, where, document in _read(path, 0, lambda error: None):
                    if key_hash(value(document)) in wanted:
                        if value(document) in seen:
                            yield document, where, seen[value(document)]
                        seen.setdefault(value(document), where)


def _read(
    path: Path, skip: int, on_error: Callable[[UserError], None], listing: Listing | None = None
) -> Iterator[tuple[int, str, Document]]:
    """(number, where, document): `where` names the document in errors. `listing`: that of a folder, if it is known."""
    if path.is_dir():
        rows = folder_rows(path, listing or folder_listing(path), skip, on_error)
    elif path.suffix == ".parquet":
        rows = _parquet_rows(path, skip, on_error)
    else:
        if path.suffix.lower() in TEXT_SUFFIXES | MARKUP_SUFFIXES:
            raise UserError(
                f"{path}: is one text; name the folder that it is in (the name of a JSONL file ends in .jsonl)"
            )
        rows = ((number, f"{path}:{number}", row) for number, row in read_jsonl(path, "document", skip, on_error))
    for number, where, row in rows:
        try:
            document = _document(row, where, path.is_dir() and Path(where).suffix.lower() in MARKUP_SUFFIXES)
        except UserError as error:
            on_error(error)
        else:
            yield number, where, document


def _document(row: dict[str, Any], where: str, is_plain: bool) -> Document:
    contents = row.get("contents")
    if "text" not in row and isinstance(contents, str):
        first, newline, rest = contents.partition("\n")
        row |= {"title": first.strip().strip('"'), "text": rest} if newline else {"text": contents}
    if row.get("title") is None:
        row["title"] = ""
    if row.get("text", "") is None and row["title"]:
        row["text"] = ""
    if type(row.get("id")) is int:
        row["id"] = str(row["id"])
    for field in FIELDS:
        value = row.get(field)
        if field not in row:
            raise UserError(f"{where}: a document needs a field {field!r}{did_you_mean(field, row)}")
        if not isinstance(value, str):
            raise UserError(f"{where}: {field!r} must be a string, got {type(value).__name__}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{where}: {field!r} holds half of a surrogate pair, which is no text ({error})") from error
    text, title = (row[field] if is_plain else without_tags(row[field]) for field in ("text", "title"))
    text = text if text.strip() else ""
    for field, content in (("id", row["id"]), ("text", text or title)):
        if not content.strip():
            raise UserError(f"{where}: {field!r} is empty; fill it or remove this document")
    return Document(document_id(row["id"]), text, title)


# Parquet


def _parquet_rows(
    path: Path, skip: int, on_error: Callable[[UserError], None]
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    try:
        # Buffered: a column is decoded page by page, where by default a row group's whole column is loaded.
        with open_regular(path) as source, pq.ParquetFile(source, buffer_size=1 << 20) as file:
            names = file.schema_arrow.names
            for field in FIELDS[:2]:
                if field not in names:
                    raise UserError(f"{path}: a document needs a column {field!r}{did_you_mean(field, names)}")
            group, number = 0, 0
            while group < file.num_row_groups and number + file.metadata.row_group(group).num_rows <= skip:
                number += file.metadata.row_group(group).num_rows
                group += 1
            batches = file.iter_batches(
                ROWS,
                row_groups=range(group, file.num_row_groups),
                columns=[field for field in FIELDS if field in names],
                use_threads=False,
            )
            for batch in batches:
                dropped = min(max(skip - number, 0), len(batch))
                number += dropped
                for row in parquet_rows(batch.slice(dropped)):
                    number += 1
                    if isinstance(row, str):
                        on_error(UserError(f"{path}:{number}: {row}"))
                    else:
                        yield number, f"{path}:{number}", row
    except FileNotFoundError as error:
        raise cannot_read(path, error) from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({error}); it may be cut off or damaged") from error
