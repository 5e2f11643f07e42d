"""Runs and judgements in TREC's formats: what is written is what trec_eval ranks, and a killed search is resumed."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.errors import UserError
from ratchet.core.records import Passage
from ratchet.retrieval import trec
from ratchet.retrieval.index import Index
from ratchet.retrieval.trec import read_qrels, read_run, search_documents, write_run
from tests.helpers.tiny_index import tiny_index

pytestmark = pytest.mark.numeric
QUERIES = [("q1", "birch"), ("q 2", "birch cedar"), ("q3", "nothing"), ("q4", "cedar")]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Twelve equal documents, in no order; two of several chunks; one document in another shard."""
    documents = [{"id": f"d{i:02}", "text": "ash birch"} for i in (7, 3, 11, 0, 5, 9, 1, 10, 4, 8, 2, 6)]
    documents += [{"id": "long a", "text": "cedar " * 60}, {"id": "long b", "text": "cedar ash " * 40}]
    return tiny_index(tmp_path, documents, chunk_tokens=12, chunk_overlap=0, shard_documents=13, stemmer=None)


def expected(index: Index, query: str, k: int) -> list[tuple[str, float]]:
    """All chunks are searched, and each document has its best one; equal scores by id, descending."""
    best: dict[str, float] = {}
    for passage in index.search(query, len(index)):
        best.setdefault(passage.document_id.replace(" ", "%20"), passage.score)
    return sorted(best.items(), key=lambda item: (item[1], item[0]), reverse=True)[:k]


@pytest.mark.parametrize("k", [1, 3, 12, 100])
def test_documents_are_ranked_by_their_best_chunk_and_equal_ones_by_id(index: Index, k: int) -> None:
    found = search_documents(index, [text for _, text in QUERIES], k)
    for (_, text), hits in zip(QUERIES, found, strict=True):
        wanted = expected(index, text, k)
        assert [name for _, name in hits] == [name for name, _ in wanted]
        assert [score for score, _ in hits] == pytest.approx([score for _, score in wanted], rel=1e-6)
    assert found[0][0][1] == "d11" and found[2] == []


def test_another_retriever_is_asked_for_its_passages(index: Index) -> None:
    class Elsewhere:
        digest = "elsewhere"

        def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
            return index.search(query, k, offset)

    assert search_documents(Elsewhere(), ["cedar"], 100) == search_documents(index, ["cedar"], 100)


def test_a_run_is_read_as_it_was_written(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "out.trec"
    written = write_run(path, index, QUERIES, 5)
    assert (written.queries, written.resumed) == (4, 0)
    first = path.read_text().splitlines()[0].split(" ")
    assert first[:4] == ["q1", "Q0", "d11", "1"] and first[5].startswith("ratchet-")
    found = search_documents(index, [text for _, text in QUERIES], 5)
    names = ["q1", "q%202", "q3", "q4"]
    whole = {name: [document for _, document in hits] for name, hits in zip(names, found, strict=True) if hits}
    assert read_run(path) == whole
    (tmp_path / "again.trec.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_run(tmp_path / "again.trec.gz") == whole
    assert [name.name for name in tmp_path.glob("*trec*")] and not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("lines", [0, 1, 4, 5, 7, 10])
def test_a_killed_search_is_resumed_wherever_it_stopped(
    index: Index, tmp_path: Path, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, partial = tmp_path / "out.trec", tmp_path / "out.trec.partial"
    write_run(path, index, QUERIES, 5)
    whole = path.read_bytes()
    path.unlink()
    kept = b"".join(whole.splitlines(keepends=True)[:lines])
    partial.write_bytes(kept + b"q9 Q0 d1"[: lines * 8])  # the torn line of a kill
    asked: list[str] = []
    search = trec.search_documents

    def watched(retriever: Any, queries: Any, k: int) -> Any:
        asked.extend(queries)
        return search(retriever, queries, k)

    monkeypatch.setattr(trec, "search_documents", watched)
    write_run(path, index, QUERIES, 5)
    assert path.read_bytes() == whole and not partial.exists()
    assert len(asked) == {0: 4, 1: 4, 4: 4, 5: 4, 7: 3, 10: 3}[lines]
    asked.clear()
    assert write_run(path, index, QUERIES, 5).resumed == 4
    assert asked == []


def test_results_of_two_searches_are_never_in_one_run(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "out.trec"
    write_run(path, index, QUERIES, 5)
    with pytest.raises(UserError, match=r"out\.trec: holds another run; delete it"):
        write_run(path, index, QUERIES, 6)
    path.rename(tmp_path / "out.trec.partial")
    assert write_run(path, index, QUERIES, 6).resumed == 0
    with pytest.raises(UserError, match=r"out\.trec\.gz: a run is written as text"):
        write_run(tmp_path / "out.trec.gz", index, QUERIES, 5)
    with pytest.raises(UserError, match=r"cannot write \(Is a directory"):
        write_run(tmp_path, index, QUERIES, 5)
    with pytest.raises(UserError, match="two queries have the same id"):
        write_run(tmp_path / "b.trec", index, [("q 1", "ash"), ("q%201", "ash")], 5)


def test_qrels_come_as_trec_beir_and_ms_marco_have_them(tmp_path: Path) -> None:
    wanted = {"1": {"d1": 2, "d2": 0}, "2": {"d1": -1}}
    for text in (
        "1 0 d1 2\n1 0 d2 0\n\n2 0 d1 -1\n",
        "query-id\tcorpus-id\tscore\r\n1\td1\t2\r\n1\td2\t0\r\n2\td1\t-1\r\n",
        "1\t0\td1\t2\n1\t0\td2\t0\n2\t0\td1\t-1\n",
        "1\td1\t2.0\n1\td1\t2\n1\td2\t0.0\n2\td1\t-1.0\n",
    ):
        (tmp_path / "qrels").write_text(text)
        assert read_qrels(tmp_path / "qrels") == wanted


def test_runs_are_read_in_the_order_of_trec_eval(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_text("1 Q0 a 1 2.0 x\n1 Q0 b 2 2.0000000001 x\n1 Q0 c 3 2.5 x\n1 Q0 d 4 1e-3 x\n")
    assert read_run(path) == {"1": ["c", "b", "a", "d"]}
    path.write_text("1\tb\t2\n1\ta\t1\n")
    assert read_run(path) == {"1": ["a", "b"]}


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_run, "1 Q0 a 1 2.0\n", r"file:1: not a line of a run"),
        (read_run, "1 Q0 a 1 2 x\n1 Q0 a 2 1 x\n", r"file:2: query 1 has document a twice"),
        (read_run, "1 Q0 a 1 nan x\n", r"file:1: 'nan' is not a number"),
        (read_run, "\n", "file: has no line of a run"),
        (read_qrels, "1 0 a high\n", r"file:1: 'high' is not a number"),
        (read_qrels, "1 a\n", r"file:1: not a judgement"),
        (read_qrels, "1 0 a 0.5\n", r"file:1: the relevance 0.5 is not a whole number"),
        (read_qrels, "1 0 a 1\n1 0 a 2\n", r"file:2: judges document a for query 1 a second time"),
        (read_qrels, "query-id\tcorpus-id\tscore\n", "file: has no judgement"),
        (read_qrels, b"PK\x03\x04", "file: is a ZIP archive"),
        (read_qrels, b"1 0 \xff\xff 1\n", "file: not UTF-8"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, read: Any, text: str | bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=message):
        read(tmp_path / "file")
    with pytest.raises(UserError, match="none: cannot read"):
        read(tmp_path / "none")
    (tmp_path / "file.gz").write_bytes(gzip.compress(b"")[:10] + b"\xff" * 9)
    with pytest.raises(UserError, match=r"file\.gz: cannot read \(Error -3"):
        read(tmp_path / "file.gz")
