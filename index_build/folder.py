"""Folders of documents: a file is a document, its path below the folder is its id."""

from __future__ import annotations

import logging
import os
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ratchet.core.errors import UserError
from ratchet.core.extras import install, missing_package
from ratchet.core.files import decode_text
from ratchet.index_build.markup import HTML_SUFFIXES, PDF_SUFFIXES, read_markup

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
    """How many are not read, by suffix; files without one are counted by ''."""

    @property
    def skipped_text(self) -> str:
        """Such as '2 .docx, 1 .png'; '' where every file is read."""
        ordered = sorted(self.skipped.items(), key=lambda item: (-item[1], item[0] or "~"))
        kinds = [f"{count} {kind or 'without a suffix'}" for kind, count in ordered[:MAX_KINDS]]
        more = len(self.skipped) - MAX_KINDS
        return ", ".join([*kinds, *([f"and {more} other kinds"] if more > 0 else [])])


def folder_listing(folder: Path) -> Listing:
    """The files of a folder and of the folders in it.

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
    """(number, path, fields of the document) of each file after the first `skip`."""
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
    """(title, text) of a text, whose title only the front matter of a Markdown file tells. A text that is not UTF-8 is
    noted in the log."""
    text, encoding = decode_text(path.read_bytes(), path)
    if encoding != "utf-8":
        _note_encoding(path, encoding)
    return split_front_matter(text) if path.suffix.lower() == ".md" else ("", text)


def split_front_matter(text: str) -> tuple[str, str]:
    """(title, text) of a Markdown text without the YAML or TOML before it, which tells its title; ('', text) where
    there is none. What cannot be read as either is text."""
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
    """Once for each file: a build reads it when it plans and again when it writes."""
    logger.warning("%s: not UTF-8; read as %s", path, encoding)


def cannot_read(path: Path, error: OSError) -> UserError:
    """The error of a file or folder that cannot be opened."""
    return UserError(f"{path}: cannot read ({error.strerror or error}); check the path in the config")
