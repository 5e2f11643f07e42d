"""Sources of documents: JSONL, TSV, Parquet, and folders of files; a document is an id, a text, a title.

Fields and columns other than these three are ignored. An id that is an integer becomes its decimal string. A JSONL row
that has `contents` in place of `text`, as FlashRAG's corpora do, has its title in their first line. One with `_id` in
place of `id` is of a corpus of BEIR (Thakur et al. 2021, arXiv 2104.08663), and a folder of BEIR stands for its corpus.
A TSV has a header with the names of its columns and cells that may be quoted, as DPR's psgs_w100.tsv, or neither: then
the columns are id and text, or id, url, title and text, as MS MARCO's. A document with a title and no text (blank or
null) is its title; one with neither is an error, but in a corpus of BEIR or MS MARCO, which have some. Tags of HTML,
JATS and MathML in a text or title are read as `without_tags` says, and an id is in Unicode's NFC.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import logging
import os
import re
import tomllib
import unicodedata
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ratchet.core.errors import RowErrors, UserError, did_you_mean, raise_error
from ratchet.core.file_kinds import HEAD, decode_text, not_utf8, parquet_rows, refuse_other_kind
from ratchet.core.files import open_regular, read_jsonl
from ratchet.core.installed import install, missing_package
from ratchet.core.records import Document, document_id
from ratchet.core.tags import without_tags
from ratchet.index_build.markup import HTML_SUFFIXES, PDF_SUFFIXES, read_markup
from ratchet.retrieval.index import key_hash

READ = "A folder is read for its text, Markdown, HTML and PDF files; JSONL, TSV and Parquet files are named one by one"
FIELDS = ("id", "text", "title")
ROWS = 128
"""Rows of a Parquet file that are in memory at once, however large its row groups are."""
SUSPECTS = 100_000
"""Hashes of ids whose documents are compared in one pass when hashes meet."""


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
    """Yield (number, document) of one source after its first `skip` documents, which are not checked.

    A bad document is a UserError that goes to `on_error`; where that does not raise it, the document is skipped. The
    number counts from 1: the line of a JSONL file, the row of a Parquet file, or the file of a folder, whose id is its
    path below the folder and whose title is its name without suffix.
    """
    for number, _, document in _read(path, skip, on_error):
        yield number, document


def source_files(path: Path) -> list[Path]:
    """Return the files that a source is read from, in that order."""
    path = corpus_of(path)
    return [path / name for name in folder_listing(path).read] if path.is_dir() else [path]


def corpus_of(path: Path) -> Path:
    """Return the corpus of a BEIR folder, and any other path as it is."""
    names = ("corpus.jsonl", "corpus.jsonl.gz")
    is_beir = path.is_dir() and any((path / name).exists() for name in ("queries.jsonl", "queries.jsonl.gz", "qrels"))
    return next((path / name for name in names if is_beir and (path / name).is_file()), path)


def scan_documents(
    paths: Sequence[Path], on_document: Callable[[Document], None] = lambda document: None
) -> tuple[ScannedSource, ...]:
    """Read all sources once, with 16 bytes of memory a document.

    Bad documents and ids that are used twice are found now, not after hours of building: a UserError that names all of
    them by file and line. `on_document` is called with each sound one.
    """
    hashes = array("Q")
    bad = RowErrors("documents")
    scanned: list[ScannedSource] = []
    for path in paths:
        first = len(hashes)
        skipped = ""
        try:
            listing = folder_listing(path) if corpus_of(path).is_dir() else None
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
    """Yield (document, where, where the first one is) of each document whose value another one before it has.

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
    """Yield (number, where, document): `where` names the document in errors. `listing` is that of a folder, if it is
    known."""
    path = corpus_of(path)
    if path.is_dir():
        rows = folder_rows(path, listing or folder_listing(path), skip, on_error)
    elif path.suffix == ".parquet":
        rows = _parquet_rows(path, skip, on_error)
    elif path.name.endswith((".tsv", ".tsv.gz")):
        rows = _tsv_rows(path, skip, on_error)
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
    may_be_empty = "id" not in row and "_id" in row
    if may_be_empty:
        row["id"] = row["_id"]
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
        if not content.strip() and not (may_be_empty and field == "text"):
            raise UserError(f"{where}: {field!r} is empty; fill it or remove this document")
    return Document(document_id(row["id"]), text, title)


# Tables

WITHOUT_HEADER = {2: ("_id", "text"), 4: ("_id", "url", "title", "text")}
"""MS MARCO's columns, of passages and of documents, by their number."""
csv.field_size_limit(2**31 - 1)


def _tsv_rows(
    path: Path, skip: int, on_error: Callable[[UserError], None]
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    try:
        with open_regular(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
            refuse_other_kind(file.peek(HEAD), path)
            lines = io.TextIOWrapper(file, "utf-8-sig", newline="\n")
            first = lines.readline()
            names: Sequence[str] = [cell.strip().lower() for cell in first.split("\t")]
            rows: Iterator[tuple[int, list[str]]]
            if "id" in names and "text" in names:
                table = csv.reader(lines, delimiter="\t", strict=True)
                rows = ((table.line_num + 1, cells) for cells in table)
            elif "text" not in names and (names := WITHOUT_HEADER.get(len(names), ())):
                both = enumerate(itertools.chain([first], lines), 1)
                rows = ((number, line.rstrip("\r\n").split("\t")) for number, line in both if line.strip())
            else:
                raise UserError(
                    f"{path}:1: neither a header with the columns id, text and title, nor MS MARCO's two columns (id, "
                    "text) or four (id, url, title, text)"
                )
            number = 1
            for number, cells in rows:
                if skip > 0 or not cells:
                    skip -= bool(cells)
                elif len(cells) == len(names):
                    yield number, f"{path}:{number}", dict(zip(names, cells, strict=True))
                else:
                    on_error(UserError(f"{path}:{number}: {len(cells)} columns, not {len(names)}; fix this line"))
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error
    except csv.Error as error:
        raise UserError(f"{path}: not a table after line {number} ({error}); fix the next line") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot read on ({error}); check the path in the config") from error


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


TEXT_SUFFIXES = frozenset({".txt", ".md"})
MARKUP_SUFFIXES = HTML_SUFFIXES | PDF_SUFFIXES
LINKS = "links out of the folder (`cp -rL` copies what they lead to)"
MAX_KINDS = 8
"""Kinds of files that are not read which a message names."""

FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n((?s:.{0,65536}?))^(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.MULTILINE)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listing:
    """The files of a folder."""

    read: tuple[str, ...]
    """Paths below the folder of those that are read, sorted."""
    skipped: Counter[str]
    """Files that are not read, counted by suffix; those without one by ''."""

    @property
    def skipped_text(self) -> str:
        """Text such as '2 .docx, 1 .png'; '' where every file is read."""
        ordered = sorted(self.skipped.items(), key=lambda item: (-item[1], item[0] or "~"))
        kinds = [f"{count} {kind or 'without a suffix'}" for kind, count in ordered[:MAX_KINDS]]
        more = len(self.skipped) - MAX_KINDS
        return ", ".join([*kinds, *([f"and {more} other kinds"] if more > 0 else [])])


def folder_listing(folder: Path) -> Listing:
    """List the files of a folder and of the folders in it.

    Skipped are links to folders and to anything outside this folder, so that a folder from elsewhere cannot bring in
    what only this machine has, and files of other kinds. Hidden files and folders are neither read nor counted. In a
    snapshot of Hugging Face's cache, links to the files that the cache keeps beside it (`blobs`) are read.
    """
    inside = [folder.resolve()]
    for place in (inside[0], *inside[0].parents):
        if place.name == "snapshots" and not (blobs := place.with_name("blobs")).is_symlink():
            inside.append(blobs)
    files: list[str] = []
    skipped: Counter[str] = Counter()

    def refuse(error: OSError) -> None:
        raise cannot_read(Path(error.filename or folder), error)

    for root, folders, names in os.walk(folder, onerror=refuse):
        here = Path(root)
        folders[:] = [name for name in folders if not name.startswith(".")]
        skipped[LINKS] += sum((here / name).is_symlink() for name in folders)
        for name in names:
            path = here / name
            if name.startswith("."):
                continue
            if not path.is_file() or (path.is_symlink() and not any(map(path.resolve().is_relative_to, inside))):
                skipped[LINKS if path.is_symlink() else path.suffix.lower()] += 1
            elif path.suffix.lower() in TEXT_SUFFIXES | MARKUP_SUFFIXES:
                files.append(path.relative_to(folder).as_posix())
            else:
                skipped["".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix.lower()] += 1
    return Listing(tuple(sorted(files)), +skipped)


def folder_rows(
    folder: Path, listing: Listing, skip: int, on_error: Callable[[UserError], None]
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield (number, path, fields of the document) of each file after the first `skip`."""
    names = listing.read
    markup = [name for name in names if Path(name).suffix.lower() in MARKUP_SUFFIXES]
    lacks_extra = bool(markup) and missing_package("documents") is not None
    if lacks_extra:
        shown = ", ".join(markup[:MAX_KINDS]) + (
            f" and {len(markup) - MAX_KINDS} more" if len(markup) > MAX_KINDS else ""
        )
        on_error(
            UserError(
                f"{folder}: {len(markup)} HTML and PDF files ({shown}) need the extra documents: {install('documents')}"
            )
        )
    for number, name in enumerate(names[skip:], skip + 1):
        path = folder / name
        is_markup = path.suffix.lower() in MARKUP_SUFFIXES
        if is_markup and lacks_extra:
            continue
        try:
            title, text = read_markup(path) if is_markup else _read_text(path)
        except UserError as error:
            on_error(error)
        except OSError as error:
            on_error(cannot_read(path, error))
        else:
            if text.strip() or (title and not is_markup):
                title = title or unicodedata.normalize("NFC", path.stem)
                yield number, str(path), {"id": name, "text": text, "title": title}
            else:  # the name of a file is no text to find
                on_error(UserError(f"{path}: 'text' is empty; fill it or remove this document"))


def _read_text(path: Path) -> tuple[str, str]:
    """Return (title, text) of a text, whose title only the front matter of a Markdown file tells."""
    text, encoding = decode_text(path.read_bytes(), path)
    if encoding != "utf-8":
        _note_encoding(path, encoding)
    return split_front_matter(text) if path.suffix.lower() == ".md" else ("", text)


def split_front_matter(text: str) -> tuple[str, str]:
    """Return (title, text) of a Markdown text without the YAML or TOML before it; ('', text) where there is none."""
    found = FRONT_MATTER.match(text)
    if not found:
        return "", text
    try:
        values = tomllib.loads(found[2]) if found[1] == "+++" else yaml.safe_load(found[2])
    except (yaml.YAMLError, ValueError, RecursionError):
        return "", text
    if not isinstance(values, dict | None):
        return "", text  # a paragraph between two rules
    title = (values or {}).get("title")
    return " ".join(str(title).split()) if isinstance(title, str | int | float) else "", text[found.end() :]


@cache
def _note_encoding(path: Path, encoding: str) -> None:
    """Log it once for each file: a build reads it when it plans and again when it writes."""
    logger.warning("%s: not UTF-8; read as %s", path, encoding)


def cannot_read(path: Path, error: OSError) -> UserError:
    """Return the error of a file or folder that cannot be opened."""
    return UserError(f"{path}: cannot read ({error.strerror or error}); check the path in the config")
