from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from index_build.documents import check_documents, read_documents
from ratchet.errors import UserError


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_reads_plain_and_gzip_alike_and_ignores_other_fields(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "One.", "url": "x"}, {"id": "b", "text": "Zwei: \u00e4", "title": "T"}]
    plain = lines(tmp_path / "d.jsonl", *rows)
    packed = tmp_path / "d.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    found = list(read_documents(plain))
    assert found == list(read_documents(packed))
    assert [(line, d.id, d.title, d.text) for line, d in found] == [(1, "a", "", "One."), (2, "b", "T", "Zwei: ä")]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"id": "b", "text": ', ["d.jsonl:2", "not valid JSON"]),
        ("[" * 100_000, ["d.jsonl:2", "not valid JSON"]),
        ("[1, 2]", ["d.jsonl:2", "document"]),
        ({"id": "b"}, ["d.jsonl:2", "'text'"]),
        ({"id": "b", "texts": "B"}, ["d.jsonl:2", "'text'", "did you mean 'texts'"]),
        ({"text": "B"}, ["d.jsonl:2", "'id'"]),
        ({"id": 7, "text": "B"}, ["d.jsonl:2", "'id'", "string"]),
        ({"id": "b", "text": " \n"}, ["d.jsonl:2", "'text'", "empty"]),
        ({"id": "b", "text": "B", "title": ["T"]}, ["d.jsonl:2", "'title'", "string"]),
        ('{"id": "b", "text": "half \\ud800 pair"}', ["d.jsonl:2", "'text'", "surrogate"]),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: object, words: list[str]) -> None:
    path = lines(tmp_path / "d.jsonl", {"id": "a", "text": "A"}, row)
    with pytest.raises(UserError) as caught:
        check_documents([path])
    for word in words:
        assert word in str(caught.value)


def test_duplicate_ids_name_both_places(tmp_path: Path) -> None:
    first = lines(tmp_path / "one.jsonl", {"id": "x", "text": "A"}, {"id": "a", "text": "A"})
    second = lines(tmp_path / "two.jsonl", {"id": "b", "text": "B"}, {"id": "y", "text": "B"}, {"id": "a", "text": "B"})
    with pytest.raises(UserError, match=r"two\.jsonl:3: document id 'a' is already used in .*one\.jsonl:2"):
        check_documents([first, second])


def test_missing_empty_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.jsonl: cannot read"):
        check_documents([tmp_path / "nowhere.jsonl"])
    with pytest.raises(UserError, match=r"empty\.jsonl: no documents"):
        check_documents([lines(tmp_path / "empty.jsonl")])
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b'{"id": "a", "text": "A"}\n' * 1000)[:-20])
    with pytest.raises(UserError, match=r"cut\.jsonl\.gz"):
        list(read_documents(cut))
    false = tmp_path / "false.jsonl.gz"
    false.write_text('{"id": "a", "text": "A"}\n')
    with pytest.raises(UserError, match=r"false\.jsonl\.gz"):
        list(read_documents(false))
