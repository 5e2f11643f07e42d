import contextlib
import gzip
import json
import shutil
import sys
import time
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.core.errors import UserError
from ratchet.core.records import Document, Question
from ratchet.index_build import documents, markup
from ratchet.index_build.documents import LINKS, ScannedSource, read_documents, scan_documents, source_files
from ratchet.retrieval.index import key_hash, key_hashes
from tests.helpers.pdf import pdf

ROWS: list[dict[str, Any]] = [
    {"id": f"d{i}", "text": f"Text ä{i}.", "title": "T" * (i % 2), "url": i} for i in range(10)
]


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: list[dict[str, Any]], **settings: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, **settings)
    return path


def folder(path: Path, **texts: str | bytes) -> Path:
    """A file for every text: `sub__a_txt` is sub/a.txt."""
    for name, text in texts.items():
        file = path / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def source(kind: str, path: Path) -> Path:
    """ROWS as a source of each kind."""
    if kind == "parquet":
        return parquet(path / "d.parquet", ROWS, row_group_size=4)
    plain = lines(path / "d.jsonl", *ROWS)
    if kind == "jsonl.gz":
        packed = path / "d.jsonl.gz"
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        return packed
    return plain


KINDS = ("jsonl", "jsonl.gz", "parquet")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_documents(tmp_path: Path, kind: str) -> None:
    assert list(read_documents(source(kind, tmp_path))) == [
        (i, Document(row["id"], row["text"], row["title"])) for i, row in enumerate(ROWS, 1)
    ]


@pytest.mark.parametrize("kind", [*KINDS, "folder"])
def test_skipped_documents_are_left_out_and_numbers_go_on(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        path = folder(tmp_path / "f", **{f"{name}_txt": name for name in "abcdefg"})
    else:
        path = source(kind, tmp_path)
    whole = list(read_documents(path))
    for skip in range(len(whole) + 2):
        assert list(read_documents(path, skip)) == whole[skip:]


@pytest.mark.parametrize(
    ("row", "document"),
    [
        ({"id": "1", "contents": '"Velm"\nVelm lies\nby the sea.'}, Document("1", "Velm lies\nby the sea.", "Velm")),
        ({"id": 2, "contents": "One line."}, Document("2", "One line.")),
        ({"id": "a", "contents": "Velm\n "}, Document("a", "", "Velm")),
        ({"id": "a", "title": "Velm", "text": ""}, Document("a", "", "Velm")),
        ({"id": "a", "title": "Velm", "text": None}, Document("a", "", "Velm")),
    ],
)
def test_rows_as_published_corpora_have_them(tmp_path: Path, row: dict[str, Any], document: Document) -> None:
    """`contents` with the title in its first line is FlashRAG's; a document without text is its title."""
    assert [found for _, found in read_documents(lines(tmp_path / "d.jsonl", row))] == [document]
    if "text" in row:
        more = {"id": "b", "title": "", "text": "B"}
        assert next(read_documents(parquet(tmp_path / "d.parquet", [row, more]))) == (1, document)


def test_tables_come_as_dpr_and_ms_marco_have_them(tmp_path: Path) -> None:
    dpr = 'id\ttext\ttitle\n1\t"Ash ""trees"""\t"""Ash"""\n\n2\tBirch.\tBirch\n'
    for name, text, wanted in (
        ("psgs_w100.tsv", dpr, [(2, Document("1", 'Ash "trees"', '"Ash"')), (4, Document("2", "Birch.", "Birch"))]),
        ("collection.tsv", '0\tAn "ash\r\n7\tBirch.\n', [(1, Document("0", 'An "ash')), (2, Document("7", "Birch."))]),
        ("docs.tsv", "D1\thttp://a\tAsh\tIt grows.\n", [(1, Document("D1", "It grows.", "Ash"))]),
        ("empty.tsv", "D1\thttp://a\t\t \nD2\t\tAsh\t\n", [(1, Document("D1", "")), (2, Document("D2", "", "Ash"))]),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        for path in (tmp_path / name, tmp_path / f"{name}.gz"):
            for skip in range(3):
                assert list(read_documents(path, skip)) == wanted[skip:]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\ta\n2\tb\tc\n", r"d\.tsv:2: 3 columns, not 2"),
        ("1\ta\tb\n", r"d\.tsv:1: neither a header with the columns id, text"),
        (" \ta\n", r"d\.tsv:1: 'id' is empty"),
        ("id\ttext\n1\t \n", r"d\.tsv:2: 'text' is empty"),
        ("pid\ttext\n1\ta\n", r"d\.tsv:1: neither a header with the columns id, text"),
        ('id\ttext\n1\t"open\n2\tb\n', r"d\.tsv: not a table"),
        ("1\t\udcff\n", r"d\.tsv: not UTF-8"),
    ],
)
def test_a_bad_table_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.tsv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=message):
        list(read_documents(tmp_path / "d.tsv"))


def test_the_end_of_a_name_tells_the_format(tmp_path: Path) -> None:
    path = lines(tmp_path / "collection.tsv.jsonl", {"id": "1", "text": "Ash."})
    assert [found.id for _, found in read_documents(path)] == ["1"]


def test_a_folder_of_beir_is_its_corpus(tmp_path: Path) -> None:
    rows = [{"_id": "a", "title": "Ash", "text": "It grows.", "metadata": {}}, {"_id": "e", "title": "", "text": ""}]
    corpus = lines(tmp_path / "corpus.jsonl", *rows)
    assert scan_documents([corpus]) == (ScannedSource(corpus, 2, ""),), "BEIR's documents may be empty"
    with pytest.raises(UserError, match="no documents"):
        scan_documents([tmp_path])
    lines(tmp_path / "queries.jsonl", {"_id": "1", "text": "ash"})
    assert scan_documents([tmp_path]) == (ScannedSource(tmp_path, 2, ""),)
    assert [found.id for _, found in read_documents(tmp_path)] == ["a", "e"] and source_files(tmp_path) == [corpus]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"id": "b", "text": ', ["d.jsonl:2", "not valid JSON"]),
        ("[" * 100_000, ["d.jsonl:2", "not valid JSON"]),
        ("[1, 2]", ["d.jsonl:2", "document"]),
        ({"id": "b"}, ["d.jsonl:2", "'text'"]),
        ({"id": "b", "texts": "B"}, ["d.jsonl:2", "'text'", "did you mean 'texts'"]),
        ({"text": "B"}, ["d.jsonl:2", "'id'"]),
        ({"id": 7.0, "text": "B"}, ["d.jsonl:2", "'id'", "string"]),
        ({"id": True, "text": "B"}, ["d.jsonl:2", "'id'", "string"]),
        ({"id": "b", "text": " \n"}, ["d.jsonl:2", "'text'", "empty"]),
        ({"id": "", "text": "B"}, ["d.jsonl:2", "'id'", "empty"]),
        ({"id": "b", "text": "B", "title": ["T"]}, ["d.jsonl:2", "'title'", "string"]),
        ('{"id": "b", "text": "half \\ud800 pair"}', ["d.jsonl:2", "'text'", "surrogate"]),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: object, words: list[str]) -> None:
    path = lines(tmp_path / "d.jsonl", {"id": "a", "text": "A"}, row)
    with pytest.raises(UserError) as caught:
        scan_documents([path])
    for word in words:
        assert word in str(caught.value)


def test_all_bad_documents_are_named_at_once(tmp_path: Path) -> None:
    bad = [{"id": "b"}, "{nope", {"id": "c", "text": " "}, "[1]"]
    jsonl = lines(tmp_path / "d.jsonl", {"id": "a", "text": "A"}, *bad)
    texts = folder(tmp_path / "f", a_txt="A", b_txt=b"\x00", c_txt=" ")
    with pytest.raises(UserError) as caught:
        scan_documents([jsonl, texts])
    first, *named = str(caught.value).splitlines()
    assert first == "6 of the first 8 documents cannot be used:"
    places = [*(f"d.jsonl:{line}: " for line in range(2, 6)), "f/b.txt: ", "f/c.txt: "]
    assert all(place in line for place, line in zip(places, named, strict=True))
    with pytest.raises(UserError, match=r"30 of the first 30 documents(.|\n)*and 10 more$"):
        scan_documents([lines(tmp_path / "e.jsonl", *["{"] * 30)])


def test_missing_empty_and_damaged_files(tmp_path: Path) -> None:
    for name in ("nowhere.jsonl", "nowhere.parquet"):
        with pytest.raises(UserError, match=f"{name}: cannot read"):
            scan_documents([tmp_path / name])
    with pytest.raises(UserError, match=r"empty\.jsonl: no documents"):
        scan_documents([lines(tmp_path / "empty.jsonl")])
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b'{"id": "a", "text": "A"}\n' * 1000)[:-20])
    with pytest.raises(UserError, match=r"cut\.jsonl\.gz"):
        list(read_documents(cut))
    false = tmp_path / "false.jsonl.gz"
    false.write_text('{"id": "a", "text": "A"}\n')
    with pytest.raises(UserError, match=r"false\.jsonl\.gz"):
        list(read_documents(false))


# Ids


def test_duplicate_ids_name_both_places(tmp_path: Path) -> None:
    one = lines(tmp_path / "one.jsonl", {"id": "x", "text": "A"}, {"id": "a.txt", "text": "A"})
    two = parquet(tmp_path / "two.parquet", [{"id": i, "text": "B"} for i in ("b", "y", "a.txt")])
    three = folder(tmp_path / "three", a_txt="A", y_txt="Y")
    with pytest.raises(UserError, match=r"two\.parquet:3: document id 'a.txt' is already used in .*one\.jsonl:2"):
        scan_documents([one, two])
    with pytest.raises(UserError, match=r"three/a\.txt: document id 'a\.txt' is already used in .*one\.jsonl:2"):
        scan_documents([one, three])
    with pytest.raises(UserError, match=r"one\.jsonl:1: document id 'x' is already used in .*one\.jsonl:1"):
        scan_documents([one, one])


def test_ids_that_share_a_hash_are_not_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two such ids cannot be found in a test's time: a coarser hash stands in.
    monkeypatch.setattr(documents, "key_hash", lambda text: key_hash(text) % 3)
    path = lines(tmp_path / "d.jsonl", *ROWS)
    assert scan_documents([path]) == (ScannedSource(path, 10, ""),)
    monkeypatch.setattr(documents, "SUSPECTS", 1)
    again = lines(tmp_path / "e.jsonl", *ROWS[8:])
    with pytest.raises(UserError, match=r"e\.jsonl:\d: document id 'd[89]' is already used in .*d\.jsonl:(9|10)"):
        scan_documents([path, again])


def test_hashes_are_fixed_by_their_definition() -> None:
    # From coreutils: printf '%s' zürich | b2sum -l 64. Stored indexes hold these numbers.
    known = int.from_bytes(bytes.fromhex("3725b210cc67cf84"), "little")
    assert key_hash("zürich") == known
    assert key_hashes(["a", "zürich"]).tolist() == [key_hash("a"), known]
    assert key_hashes([]).dtype == np.uint64 and len(key_hashes([])) == 0


# Parquet


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"id": "a", "content": "A"}], r"d\.parquet: a document needs a column 'text'"),
        ([{"id": "a", "text": "A"}, {"id": "b", "text": None}], r"d\.parquet:2: 'text' must be a string"),
        ([{"id": "a", "text": b"A"}], r"d\.parquet:1: 'text' must be a string, got bytes"),
    ],
)
def test_a_bad_column_or_row_is_named(tmp_path: Path, rows: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(UserError, match=words):
        scan_documents([parquet(tmp_path / "d.parquet", rows)])


def test_bytes_that_are_no_text_name_the_row(tmp_path: Path) -> None:
    texts = pa.array([b"A"] * 200 + [b"\xff\xfe", b"B", b"\xff"], pa.binary())
    column = pa.StringArray.from_buffers(len(texts), texts.buffers()[1], texts.buffers()[2])
    pq.write_table(pa.table({"id": [str(i) for i in range(203)], "text": column}), tmp_path / "d.parquet")
    with pytest.raises(UserError, match=r"d\.parquet:201: not valid UTF-8(.|\n)*d\.parquet:203: not valid UTF-8"):
        scan_documents([tmp_path / "d.parquet"])


# Folders of text


def test_a_folder_is_its_text_files_sorted_by_path(tmp_path: Path) -> None:
    path = folder(
        tmp_path / "f", b_txt="B", a__z_md="\ufeffZ ä", a__c_TXT="C", d_py="no", _hidden_txt="no", _git__x_txt="no"
    )
    assert list(read_documents(path)) == [
        (1, Document("a/c.TXT", "C", "c")),
        (2, Document("a/z.md", "Z ä", "z")),
        (3, Document("b.txt", "B", "b")),
    ]
    assert source_files(path) == [path / "a/c.TXT", path / "a/z.md", path / "b.txt"]


def test_a_bad_text_file_is_named(tmp_path: Path) -> None:
    damaged = "Ärger über Öl".encode() + b"\xe4 d"
    with pytest.raises(UserError, match=r"f/b\.txt: not UTF-8 text \(.* at byte 16\)"):
        scan_documents([folder(tmp_path / "f", a_txt="A", b_txt=damaged)])
    with pytest.raises(UserError, match=r"g/a\.txt: 'text' is empty"):
        scan_documents([folder(tmp_path / "g", a_txt="\n")])


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder(tmp_path / "secret", s_txt="secret")
    path = folder(tmp_path / "f", a_txt="A")
    (path / "inside.txt").symlink_to("a.txt")
    (path / "outside.txt").symlink_to(tmp_path / "secret" / "s.txt")
    (path / "broken.txt").symlink_to("nothing.txt")
    (path / "there").symlink_to(tmp_path / "secret")
    (path / "loop").symlink_to(".")
    assert scan_documents([path]) == (ScannedSource(path, 2, f"4 {LINKS}"),)
    assert [d.id for _, d in read_documents(path)] == ["a.txt", "inside.txt"]
    (path / "a.txt").unlink()
    with pytest.raises(
        UserError, match=r"f: no documents; .* Not read: 5 links out of the folder \(`cp -rL`.*A folder is"
    ):
        scan_documents([path])
    others = folder(tmp_path / "g", b_docx="x", c_DOCX="x", d_jsonl="{}", e_jsonl_gz="x", LICENSE="x")
    skipped = r"2 \.docx, 1 \.jsonl, 1 \.jsonl\.gz, 1 without a suffix"
    with pytest.raises(UserError, match=rf"g: no documents; .* Not read: {skipped}"):
        scan_documents([others])


def test_a_snapshot_of_the_hubs_cache_is_read_through_its_links(tmp_path: Path) -> None:
    folder(tmp_path / "secret", s_txt="secret")
    cache = folder(tmp_path / "datasets--velm", blobs__1="One.", blobs__2="# Two", refs__main="rev")
    texts = cache / "snapshots" / "rev" / "texts"
    texts.mkdir(parents=True)
    (texts / "a.txt").symlink_to("../../../blobs/1")
    (texts.parent / "b.md").symlink_to("../../blobs/2")
    (texts / "c.txt").symlink_to("../../../../secret/s.txt")
    for place, ids in ((texts, ["a.txt"]), (texts.parent, ["b.md", "texts/a.txt"])):
        assert [document.id for _, document in read_documents(place)] == ids
        assert "1 links out" in scan_documents([place])[0].skipped
    shutil.rmtree(cache / "blobs")
    (cache / "blobs").symlink_to(tmp_path / "secret")
    (texts / "d.txt").symlink_to("../../../blobs/s.txt")
    with pytest.raises(UserError, match="no documents"):
        scan_documents([texts])


def test_ids_are_composed_as_gold_ids_are(tmp_path: Path) -> None:
    name = unicodedata.normalize("NFD", "Zürich")
    path = folder(tmp_path / "f", **{f"{name}_txt": "A"})
    [(_, document)] = read_documents(path)
    assert document == Document("Zürich.txt", "A", "Zürich")
    assert Question(id="q", text="?", gold_ids=(f"{name}.txt",)).gold_ids == (document.id,)
    [(_, document)] = read_documents(lines(tmp_path / "d.jsonl", {"id": name, "text": "A"}))
    assert document.id == "Zürich"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "title", "rest"),
    [
        ("---\ntitle: 'The  ferry'\ntags: [a]\n---\nIt sails.", "The ferry", "It sails."),
        ("\ufeff---\r\ntitle: 1984\r\n---\r\nA book.", "1984", "A book."),
        ('+++\ntitle = "The ferry"\n+++\nIt sails.', "The ferry", "It sails."),
        ("---\ntitle: Alone\n...\n", "Alone", ""),
        ("---\ntags: [a]\n---\nIt sails.", "a", "It sails."),
        ("---\n---\nIt sails.", "a", "It sails."),
        *(
            (text, "a", text)
            for text in (
                "---\nA rule before: and: after.\n---\nIt sails.",
                "---\nA rule.\n\n---\nIt sails.",
                "---\ntitle: never closed",
                "It sails.\n---\ntitle: late\n---\n",
                "---\nx: " + "[" * 5000 + "\n---\nIt sails.",
            )
        ),
    ],
)
def test_front_matter_is_no_text_and_tells_the_title(tmp_path: Path, text: str, title: str, rest: str) -> None:
    path = folder(tmp_path / "f", a_md=text)
    assert [document for _, document in read_documents(path)] == [Document("a.md", rest, title)]


TAGGED = {"title": "CO<sub>2</sub>", "text": "H<sub>2</sub>O, 10<sup>6</sup><br>a < b &amp; `<i>c</i>`"}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "md", "txt"])
def test_tags_in_a_text_are_no_words(tmp_path: Path, kind: str) -> None:
    if kind == "jsonl":
        path = lines(tmp_path / "d.jsonl", TAGGED | {"id": "a"})
    elif kind == "parquet":
        path = parquet(tmp_path / "d.parquet", [TAGGED | {"id": "a"}])
    else:
        path = folder(tmp_path / "f", **{f"a_{kind}": TAGGED["text"]})
    [(_, document)] = read_documents(path)
    assert document.text == "H2O, 10^6\na < b & `<i>c</i>`"
    assert document.title == ("CO2" if kind in ("jsonl", "parquet") else "a")


PAGE = """<html><head><title>Fares</title></head><body><nav><a href="/">Home</a></nav><main><h1>Fares</h1>
<p>The ferry Oarabel sails twice a day between Velm and Orsk, and takes bicycles.</p>
<table><tr><th>Class</th><th>Price</th></tr><tr><td>Deck</td><td>4 crowns</td></tr></table>
<pre><code>if late:
    wait()
</code></pre></main></body></html>"""


@pytest.mark.slow
def test_pages_of_html_and_pdf_are_documents_with_their_titles(tmp_path: Path) -> None:
    path = folder(
        tmp_path / "f", a_html=PAGE, b_pdf=pdf("It was built in 1407.", "By Ada Torrin."), c_htm="<p>So it is.</p>"
    )
    page, paper, plain = (document for _, document in read_documents(path))
    assert (page.id, page.title) == ("a.html", "Fares")
    assert "| Deck | 4 crowns |" in page.text and "if late:\n    wait()" in page.text and "Home" not in page.text
    assert paper == Document("b.pdf", "It was built in 1407.\n\nBy Ada Torrin.", "The ferry")
    assert (plain.text, plain.title) == ("So it is.", "c")


SCIENCE = """<html><head><title>CO&lt;sub&gt;2&lt;/sub&gt;</title></head><body><article>
<p>Water is H<sub>2</sub>O, 10<sup>6</sup> cells per m<sup>2</sup>, E<b>scher</b>ichia, <b>10</b><sup>7</sup>,
note<sup><a>1</a></sup>.</p><p>Formula <math><msup><mn>10</mn><mn>6</mn></msup><mo>+</mo>
<mfrac><mn>1</mn><mn>2</mn></mfrac></math> ends.<br>Next.</p>
<table><tr><td>CO<sub>2</sub></td><td>one<br>two</td></tr></table><div>Bare <i>words</i> of a block.</div>
<figure><figcaption>A caption.</figcaption></figure></article></body></html>"""


@pytest.mark.parametrize("elements", [10_000, 3])
def test_numbers_and_words_of_a_page_are_what_it_shows(
    tmp_path: Path, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markup, "MAX_ELEMENTS", elements)
    (tmp_path / "a.html").write_text(SCIENCE)
    title, text = markup.read_markup(tmp_path / "a.html")
    assert title == "CO2" and "<" not in text
    words = [word for word in text.split() if word != "|"]
    assert " ".join(words) == (
        "Water is H2O, 10^6 cells per m2, Escherichia, 10^7, note^1. Formula 10^6+1/2 ends. Next. CO2 one two "
        "Bare words of a block. A caption."
    )


def test_pages_that_cannot_be_read_are_named_together(tmp_path: Path) -> None:
    scanned, cut = pdf(""), pdf("Velm")[:60]
    files: dict[str, str | bytes] = {
        "a_pdf": scanned,
        "b_pdf": cut,
        "c_pdf": b"no pdf",
        "d_html": "",
        "e_html": "<html><body></body></html>",
    }
    with pytest.raises(UserError) as caught:
        scan_documents([folder(tmp_path / "f", good_txt="A", **files)])
    first, *named = str(caught.value).splitlines()
    assert first == "5 of the first 6 documents cannot be used:"
    assert ["holds no text, as where its pages are scanned" in line for line in named] == [True, *[False] * 4]
    assert all(f"f/{name.replace('_', '.')}: " in line for name, line in zip(files, named, strict=True))


def test_pages_in_other_encodings_are_read_as_they_say(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    greek = "<html><head><meta charset='windows-1253'></head><body><p>Αθήνα είναι εδώ</p></body></html>"
    undeclared = "<html><body><p>Schöne Grüße aus Köln</p></body></html>"
    path = folder(
        tmp_path / "f",
        a_html=greek.encode("windows-1253"),
        b_html=undeclared.encode("latin-1"),
        c_txt="„Grüße“ für 5 €".encode("windows-1252"),
        d_txt="Grüße".encode("utf-16"),
    )
    texts = [document.text for _, document in read_documents(path)]
    assert texts == ["Αθήνα είναι εδώ", "Schöne Grüße aus Köln", "„Grüße“ für 5 €", "Grüße"]
    assert "c.txt: not UTF-8; read as windows-1252" in caplog.text


def test_without_the_extra_the_files_and_the_fix_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    texts = folder(tmp_path / "f", a_html=PAGE, b_pdf=pdf("B"), c_txt="C", d_txt=" ")
    with pytest.raises(UserError) as caught:
        scan_documents([texts])
    said = str(caught.value)
    assert "2 HTML and PDF files (a.html, b.pdf) need the extra documents: pip install" in said
    assert "d.txt: 'text' is empty" in said, "other flaws are named in the same run"


@pytest.mark.slow
def test_a_file_that_keeps_the_reader_busy_is_named_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_: object) -> str:
        while True:
            with contextlib.suppress(Exception):  # as libraries do
                time.sleep(1)

    monkeypatch.setattr("ratchet.index_build.markup.SECONDS", 1)
    monkeypatch.setattr("ratchet.index_build.markup.page_text", busy)
    bad: list[UserError] = []
    texts = folder(tmp_path / "f", a_pdf=pdf("B"), b_txt="B")
    assert [document.id for _, document in read_documents(texts, on_error=bad.append)] == ["b.txt"]
    assert "a.pdf: takes longer than 1 s to read" in str(bad[0]) and len(bad) == 1


@pytest.mark.parametrize("declared", ["zlib", "bz2", "hex", "undefined", "idna", "punycode", "utf-16", "nonsense"])
def test_a_page_that_declares_an_encoding_of_no_text_is_read(tmp_path: Path, declared: str) -> None:
    page = f'<html><head><meta charset="{declared}"></head><body><p>Caf\xe9 by the harbour.</p></body></html>'
    texts = folder(tmp_path / "f", a_html=page.encode("latin-1"))
    assert [document.text for _, document in read_documents(texts)] == ["Café by the harbour."]


@pytest.mark.parametrize("head", ['<meta charset="{}">', '<?xml version="1.0" encoding="{}"?>'])
@pytest.mark.parametrize(("encoding", "text"), [("koi8-r", "История порта"), ("shift_jis", "港町の歴史は古い。")])
def test_a_page_is_read_in_the_encoding_that_it_declares(tmp_path: Path, head: str, encoding: str, text: str) -> None:
    page = f"{head.format(encoding)}<html><BODY><p>{text}</p></BODY></html>"
    texts = folder(tmp_path / "f", a_html=page.encode(encoding))
    assert [document.text for _, document in read_documents(texts)] == [text]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.html", b"<html><body>a\0b</body></html>"),
        ("a.txt", ("История порта. " * 3).encode("cp1251")),
        ("a.txt", ("港町の歴史は古い。" * 3).encode("shift_jis")),
        ("a.txt", "Zürich".encode("cp437")),
    ],
)
def test_a_text_in_an_encoding_that_cannot_be_told_is_named_and_not_garbled(
    tmp_path: Path, name: str, data: bytes
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=rf"{name}: not UTF-8 text \(.*; convert the file to UTF-8"):
        list(read_documents(tmp_path))
