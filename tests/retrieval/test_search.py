from __future__ import annotations

import math
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_index import shared_tokenizer, tiny_index

from index_build.chunks import Chunker
from retrieval import kernel
from retrieval.index import Index
from retrieval.kernel import top_chunks

WORDS = ["ash", "birch", "cedar", "élm", "fir", "gum"]
PROSE = st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(" ".join)
QUERY = st.lists(st.sampled_from([*WORDS, "unknown", "zzz"]), max_size=6).map(" ".join)


def brute_force(chunks: list[str], query: str, k1: float, b: float) -> list[float]:
    """BM25 of every chunk, written from the formula and in double precision."""
    counts = [Counter(chunk.split()) for chunk in chunks]
    mean = sum(c.total() for c in counts) / len(chunks)
    scores = []
    for count in counts:
        score = 0.0
        for word in query.split():
            if count[word]:
                df = sum(word in other for other in counts)
                idf = math.log(1 + (len(chunks) - df + 0.5) / (df + 0.5))
                score += idf * count[word] / (count[word] + k1 * (1 - b + b * count.total() / mean))
        scores.append(score)
    return scores


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(PROSE, min_size=1, max_size=8),
    title=st.sampled_from(["", "cedar gum"]),
    query=QUERY,
    k=st.integers(0, 9),
    offset=st.integers(0, 9),
    k1=st.sampled_from([0.0, 0.9, 1.5]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_search_is_brute_force_bm25_and_pages_exactly(
    texts: list[str], title: str, query: str, k: int, offset: int, k1: float, b: float
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        documents = [{"id": f"d{i}", "text": text, "title": title} for i, text in enumerate(texts)]
        index = tiny_index(
            Path(folder), documents, chunk_tokens=12, chunk_overlap=3, k1=k1, b=b, stemmer=None, stop_words=False
        )
        everything = index.search(query, 10_000)
        page = index.search(query, k, offset)
    cuts = Chunker(shared_tokenizer(), 12, 3, "tiny").cut(texts)
    spans = [(d, n, texts[d][s:e]) for d, c in enumerate(cuts) for n, (s, e) in enumerate(c)]
    # A chunk can begin or end inside a word of many tokens; what is left of the word is a word of its own there.
    scores = brute_force([f"{title} {text}" for _, _, text in spans], query, k1, b)
    expected = {f"d{d}#{n}": score for (d, n, _), score in zip(spans, scores, strict=True) if score > 0}
    assert {p.id: p.score for p in everything} == pytest.approx(expected, rel=1e-5)
    order = [f"d{d}#{n}" for d, n, _ in spans]
    keys = [(-p.score, order.index(p.id)) for p in everything]
    assert keys == sorted(keys)
    assert page == everything[offset : offset + k]


def forest(folder: Path, count: int = 300) -> Index:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 6)) for _ in range(count)]
    return tiny_index(folder, [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)])


def test_two_by_two_is_the_whole_ranking(tmp_path: Path) -> None:
    index = forest(tmp_path)
    whole = index.search("ash birch cedar", 1000)
    assert len(whole) > 200 and len({p.score for p in whole}) < len(whole), "the test needs ties"
    assert [p for offset in range(0, len(whole) + 4, 2) for p in index.search("ash birch cedar", 2, offset)] == whole


def test_ties_come_in_document_order(tmp_path: Path) -> None:
    index = tiny_index(tmp_path, [{"id": name, "text": "ash fir"} for name in "zyxwv"])
    assert [p.id for p in index.search("fir", 5)] == ["z#0", "y#0", "x#0", "w#0", "v#0"]
    assert [p.id for p in index.search("fir", 2, 2)] == ["x#0", "w#0"]


def test_repeats_count_and_word_order_does_not(tmp_path: Path) -> None:
    index = forest(tmp_path)
    once, twice = index.search("fir", 1)[0].score, index.search("fir fir", 1)[0].score
    assert twice == pytest.approx(2 * once)
    assert index.search("gum ash fir birch", 50) == index.search("birch fir gum ash", 50)


def test_nothing_to_find(tmp_path: Path) -> None:
    index = forest(tmp_path, 5)
    for query in ("", "  ?! ", "the of", "unknown", "\x00", "fi", "ash" * 1000):
        assert index.search(query, 5) == []
    assert index.search("ash", 0) == []
    assert index.search("ash", 5, 1000) == []
    for k, offset in ((-1, 0), (1, -1)):
        with pytest.raises(ValueError, match="negative"):
            index.search("ash", k, offset)


def test_threads_get_what_one_thread_gets(tmp_path: Path) -> None:
    index = forest(tmp_path)
    queries = [f"{a} {b} trees{i}" for i in range(10) for a in WORDS for b in WORDS]
    alone = [index.search(query, 7, 3) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: index.search(query, 7, 3), queries)) == alone


def test_kernel_over_several_windows() -> None:
    """More chunks than a window holds: the exact top of float32 sums, computed another way."""
    random = np.random.default_rng(1)
    count = 2 * kernel.WINDOW + 1000
    lists = [np.sort(random.choice(count, size, replace=False)).astype(np.uint32) for size in (5, 40_000, 100_000)]
    # Weights of few bits make sums exact and ties common.
    weights = [(random.integers(1, 64, len(found)) / 16).astype(np.float32) for found in lists]
    query = np.array([3.0, 0.5, 1.0], np.float32)
    ends = np.cumsum([len(found) for found in lists])
    starts = ends - [len(found) for found in lists]
    dense = np.zeros(count, np.float32)
    for found, weight, factor in zip(lists, weights, query, strict=True):
        dense[found] += factor * weight
    ranking = np.lexsort((np.arange(count), -dense))
    postings = (np.concatenate(lists), np.concatenate(weights))
    for keep in (1, 10, 1000, count):
        scores, chunks = top_chunks(starts, ends, query, *postings, count, keep)
        ours = np.lexsort((chunks, -scores))
        expected = ranking[: min(keep, int((dense > 0).sum()))]
        assert np.array_equal(chunks[ours], expected)
        assert np.array_equal(scores[ours], dense[expected])
