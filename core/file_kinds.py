"""Kinds and encodings of files that others wrote: what is no text is refused."""

from __future__ import annotations

import codecs
import contextlib
import re
from typing import Any

from ratchet.core.errors import UserError

KINDS = {
    rb"\x1f\x8b": "is packed with gzip: its name has to end in .gz",
    rb"PK\x03\x04": "is a ZIP archive or an office document: unpack it and name the file in it, or save it as CSV "
    "(UTF-8) or JSONL, and a text as text, HTML or PDF in a folder",
    rb"%PDF-\d": "is a PDF file: name the folder that it is in",
    rb"PAR1[\0-\x1f]": "is a Parquet file: its name has to end in .parquet",
}
"""Kinds of files by their first bytes, of those that people have documents and questions in. Others are no text."""
HEAD = 16
"""Bytes of a file that tell its kind."""


def refuse_other_kind(head: bytes, where: object) -> None:
    """Raise UserError that names `where` if a file begins with the bytes of a kind that is no text."""
    for signature, kind in KINDS.items():
        if re.match(signature, head):
            raise UserError(f"{where}: {kind}")


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
