"""Kinds and encodings of files that others wrote: what is no text is refused with the kind that it is."""

from __future__ import annotations

import codecs
import contextlib
import zipfile
from pathlib import Path
from typing import Any

import regex

from ratchet.core.errors import UserError

UNPACK = "unpack it, and name the file in it"
SAVE_TABLE, SAVE_TEXT = "save it as CSV (UTF-8) or JSONL", "save it as text, HTML or PDF in a folder"
KINDS = {
    rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)": f"is packed with bzip2: {UNPACK} (bunzip2)",
    rb"\xfd7zXZ\0": f"is packed with xz: {UNPACK} (unxz)",
    rb"\x28\xb5\x2f\xfd": f"is packed with Zstandard: {UNPACK} (unzstd)",
    rb"\x04\x22\x4d\x18": f"is packed with LZ4: {UNPACK} (unlz4)",
    rb"\x1f\x8b": "is packed with gzip: its name has to end in .gz",
    rb"7z\xbc\xaf\x27\x1c": f"is a 7z archive: {UNPACK}",
    rb"Rar!\x1a\x07": f"is a RAR archive: {UNPACK}",
    rb"(?s:.{257})ustar[\0 ]": f"is a tar archive: {UNPACK} (tar -xf)",
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": f"is a file of old Office: {SAVE_TABLE}, and a text {SAVE_TEXT[8:]}",
    rb"%PDF-\d": "is a PDF file: name the folder that it is in",
    rb"\{\\rtf\d": f"is a rich text: {SAVE_TEXT}",
    rb"PAR1[\0-\x1f]": "is a Parquet file: its name has to end in .parquet",
    rb"ARROW1\0\0|\xff\xff\xff\xff(?s:.{3})\0\x10\0\0\0": "is an Arrow file: save it as Parquet or JSONL",
    rb"SQLite format 3\0": f"is a database of SQLite: {SAVE_TABLE}",
}
"""Kinds of files by their first bytes."""
ZIP = b"PK\x03\x04"
IN_ZIP = {
    "xl/": f"is an Excel workbook: {SAVE_TABLE}",
    "word/": f"is a Word document: {SAVE_TEXT}",
    "ppt/": f"is a PowerPoint presentation: {SAVE_TEXT}",
    "content.xml": f"is a file of OpenDocument: {SAVE_TABLE}, and a text {SAVE_TEXT[8:]}",
    "META-INF/container.xml": f"is an e-book (EPUB): {SAVE_TEXT}",
}
"""Kinds of ZIP archives by a name in them."""
HEAD = 512
"""Bytes of a file that tell its kind."""


def refuse_other_kind(head: bytes, where: object) -> None:
    """Raise UserError that names `where` if a file begins with the bytes of a kind that is no text."""
    for signature, kind in KINDS.items():
        if regex.match(signature, head):
            raise UserError(f"{where}: {kind}")
    if head.startswith(ZIP):
        raise UserError(f"{where}: {_zip_kind(Path(str(where)))}")


def _zip_kind(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError):
        names = []
    known = (kind for start, kind in IN_ZIP.items() if any(name.startswith(start) for name in names))
    return next(known, f"is a ZIP archive: {UNPACK}")


def parquet_rows(table: Any) -> list[dict[str, Any] | str]:
    """Return the rows of a table of pyarrow, with a reason in place of each that has no Python values: Parquet calls a
    column text without a look at its bytes, and its dates need not be Python's."""
    try:
        return list(table.to_pylist())
    except Exception:  # of many kinds, UnicodeDecodeError, OverflowError and KeyError among them
        if len(table) > 1:
            return [row for number in range(len(table)) for row in parquet_rows(table.slice(number, 1))]
    for name, column in zip(table.schema.names, table.columns, strict=True):
        try:
            column.to_pylist()
        except UnicodeDecodeError as error:
            return [f"not valid UTF-8 in column {name!r} ({error})"]
        except Exception as error:
            return [f"a value in column {name!r} cannot be read ({type(error).__name__}: {error})"]
    raise AssertionError("every column can be read alone")


MIN_ACCENTED, MAX_ACCENTED = 20, 0.25
"""Bytes above ASCII, as a number and a share, up to which a text is taken for Windows-1252. Western texts have up to
0.15, Cyrillic and Asian ones in encodings of their own 0.5 and more."""


def not_utf8(where: object, error: object = "it is UTF-16 or UTF-32, or holds NUL bytes") -> UserError:
    """Return the error of a user's file in another encoding, with what to do."""
    return UserError(f"{where}: not UTF-8 text ({error}); convert the file to UTF-8")


def decode_text(data: bytes, where: object = "") -> tuple[str, str]:
    """Return (text, encoding) of a user's file: UTF-8, UTF-16 where its first bytes say so, else Windows-1252.

    Raises UserError that names `where` for NUL bytes, for UTF-8 with damaged bytes, and for a text that is in neither:
    every byte may be a letter in Windows-1252, but no language in it has so many accents.
    """
    refuse_other_kind(data[:HEAD], where)
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16", "replace"), "utf-16"
    if b"\0" in data:
        raise not_utf8(where)
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError as error:
        replaced = data.decode(errors="replace")
        if sum(character > "\x7f" for character in replaced) > 2 * replaced.count("\ufffd"):
            raise not_utf8(where, f"{error.reason} at byte {error.start}") from error
    accented = len(data.translate(None, bytes(range(128))))
    with contextlib.suppress(UnicodeDecodeError):
        if accented <= max(MIN_ACCENTED, MAX_ACCENTED * len(data)):
            return data.decode("cp1252"), "windows-1252"
    raise not_utf8(where, "nor Windows-1252: perhaps an encoding of DOS, or of Cyrillic, Greek or Asian letters")
