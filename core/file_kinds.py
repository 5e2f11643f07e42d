"""Files of other kinds than the one that is read: refused by their own names, with what to do."""

from __future__ import annotations

import zipfile
from pathlib import Path

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
"""What a file is that begins with these bytes."""
ZIP = b"PK\x03\x04"
IN_ZIP = {
    "xl/": f"is an Excel workbook: {SAVE_TABLE}",
    "word/": f"is a Word document: {SAVE_TEXT}",
    "ppt/": f"is a PowerPoint presentation: {SAVE_TEXT}",
    "content.xml": f"is a file of OpenDocument: {SAVE_TABLE}, and a text {SAVE_TEXT[8:]}",
    "META-INF/container.xml": f"is an e-book (EPUB): {SAVE_TEXT}",
}
"""What a ZIP archive is that holds names which begin so."""
HEAD = 512
"""Bytes of a file that tell its kind."""


def refuse_other_kind(head: bytes, where: object) -> None:
    """UserError that names `where` if a file begins with the bytes of a kind that is no text."""
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
