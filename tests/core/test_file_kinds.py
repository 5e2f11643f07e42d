"""Files of other kinds are refused by their own names, for documents and questions alike."""

import bz2
import gzip
import io
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from ratchet.core.errors import UserError
from ratchet.index_build.documents import scan_documents
from ratchet.questions.load import read_rows
from tests.helpers.pdf import pdf

LINE = b'{"id": "a", "text": "A harbour"}\n'


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, "x")
    return buffer.getvalue()


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        entry = tarfile.TarInfo("d.jsonl")
        entry.size = len(LINE)
        file.addfile(entry, io.BytesIO(LINE))
    return buffer.getvalue()


def arrow(write: Callable[..., None]) -> bytes:
    buffer = io.BytesIO()
    write(pa.table({"id": ["a"], "text": ["A"]}), buffer)
    return buffer.getvalue()


def database() -> bytes:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("create table a (b text)")
        return connection.serialize()


ZIP = "is a ZIP archive or an office document: unpack it .* or save it as CSV"
FILES: dict[str, tuple[bytes, str]] = {
    "a.xlsx": (zipped("[Content_Types].xml", "xl/workbook.xml"), ZIP),
    "cut.zip": (zipped("d.jsonl")[:40], ZIP),
    "b.csv": (zipped("xl/workbook.xml"), ZIP),
    "a.jsonl": (gzip.compress(LINE), r"is packed with gzip: its name has to end in \.gz"),
    "a.csv": (gzip.compress(LINE), r"is packed with gzip: its name has to end in \.gz"),
    "b.jsonl": (arrow(pq.write_table), r"is a Parquet file: its name has to end in \.parquet"),
    "c.json": (pdf("A"), "is a PDF file: name the folder"),
    "a.jsonl.bz2": (bz2.compress(LINE), "not UTF-8 text"),
    "a.tar": (tarred(), "not UTF-8 text"),
    "a.tar.gz": (gzip.compress(tarred()), "not UTF-8 text"),
    "a.arrow": (arrow(feather.write_feather), "not UTF-8 text"),
    "a.db": (database(), "not UTF-8 text"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    data, words = FILES[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=rf"{name}\S*: {words}"):
        list(read_rows(tmp_path / name))
    if not name.endswith(".csv"):
        with pytest.raises(UserError, match=rf"{name}\S*: {words}"):
            scan_documents([tmp_path / name])
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_bytes(data)
    if ".gz" not in name:
        with pytest.raises(UserError, match=rf"a\.txt\S*: {words}"):
            scan_documents([folder])


@pytest.mark.parametrize(
    "text", ["BZhang wrote it.", "PAR1 is a gene.", "PK and Rar! and 7z", "%PDF is a format", "7z"]
)
def test_a_text_that_begins_alike_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert [scanned.documents for scanned in scan_documents([tmp_path])] == [1]


@pytest.mark.parametrize("name", ["note.md", "note.txt", "page.html", "paper.pdf"])
def test_a_single_text_is_no_list_of_documents(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("A harbour")
    with pytest.raises(UserError, match=rf"{name}: is one text; name the folder that it is in"):
        scan_documents([tmp_path / name])
