"""Searching texts in indexes that are really built: what a caller of `Index.search` relies on."""

import math
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.index_build.chunks import Chunker
from ratchet.retrieval.index import Index
from tests.helpers.tiny_index import shared_tokenizer, tiny_index

WORDS = ["ash", "birch", "cedar", "élm", "fir", "gum"]
PROSE = st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(" ".join)
QUERY = st.lists(st.sampled_from([*WORDS, "unknown", "zzz"]), max_size=6).map(" ".join)


def brute_force(chunks: list[str], query: str) -> list[float]:
    """BM25 of every chunk, written from the formula with k1 = 0.9 and b = 0.4."""
    counts = [Counter(chunk.split()) for chunk in chunks]
    mean = sum(c.total() for c in counts) / len(chunks)
    scores = []
    for count in counts:
        score = 0.0
        for word in query.split():
            if count[word]:
                df = sum(word in other for other in counts)
                idf = math.log(1 + (len(chunks) - df + 0.5) / (df + 0.5))
                score += idf * count[word] / (count[word] + 0.9 * (0.6 + 0.4 * count.total() / mean))
        scores.append(score)
    return scores


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    texts=st.lists(PROSE, min_size=1, max_size=8),
    title=st.sampled_from(["", "cedar gum"]),
    query=QUERY,
    k=st.integers(0, 9),
    offset=st.integers(0, 9),
    shard_documents=st.sampled_from([1, 3, 100]),
)
def test_search_is_bm25_and_pages_exactly(
    texts: list[str], title: str, query: str, k: int, offset: int, shard_documents: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        documents = [{"id": f"d{i}", "text": text, "title": title} for i, text in enumerate(texts)]
        index = tiny_index(
            Path(folder),
            documents,
            chunk_tokens=12,
            chunk_overlap=3,
            stemmer=None,
            shard_documents=shard_documents,
        )
        everything = index.search(query, 10_000)
        page = index.search(query, k, offset)
    cuts = Chunker(shared_tokenizer(), 12, 3, "tiny").cut(texts)
    spans = [(d, n, texts[d][s:e]) for d, c in enumerate(cuts) for n, (s, e) in enumerate(c)]
    # A chunk can begin or end inside a word of many tokens; what is left of the word is a word of its own there.
    scores = brute_force([f"{title} {text}" for _, _, text in spans], query)
    expected = {f"d{d}#{n}": score for (d, n, _), score in zip(spans, scores, strict=True) if score > 0}
    assert {p.id: p.score for p in everything} == pytest.approx(expected, rel=1e-12)
    found = {p.id: (p.document_id, p.title, p.text) for p in everything}
    assert found == {f"d{d}#{n}": (f"d{d}", title, text) for d, n, text in spans if f"d{d}#{n}" in expected}
    order = [f"d{d}#{n}" for d, n, _ in spans]
    keys = [(-p.score, order.index(p.id)) for p in everything]
    assert keys == sorted(keys)
    assert page == everything[offset : offset + k]


def forest(folder: Path, count: int = 300, shard_documents: int = 1000) -> Index:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 6)) for _ in range(count)]
    documents = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)]
    return tiny_index(folder, documents, shard_documents=shard_documents)


def test_repeats_count_and_word_order_does_not(tmp_path: Path) -> None:
    index = forest(tmp_path)
    once, twice = index.search("fir", 1)[0].score, index.search("fir fir", 1)[0].score
    assert twice == 2 * once
    assert index.search("gum ash fir birch", 50) == index.search("birch fir gum ash", 50)


def test_nothing_to_find(tmp_path: Path) -> None:
    index = forest(tmp_path, 5)
    for query in ("", "  ?! ", "the of", "unknown", "\x00", "\x00\x1b\x7f\u2028\ufeff", "fi", "ash" * 1000, "\ud83d"):
        assert index.search(query, 5) == []
    assert index.search("ash", 0) == []
    assert index.search("ash", 5, 1000) == []
    assert index.search("ash", 1 << 40, 1) == index.search("ash", 5)[1:]
    assert index.search_batch([], 5) == []
    for k, offset in ((-1, 0), (1, -1)):
        with pytest.raises(ValueError, match="negative"):
            index.search("ash", k, offset)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.text(st.characters(), max_size=40))
def test_no_query_raises_and_every_text_finds_itself(shared_forest: Index, query: str) -> None:
    """Lone surrogates, control characters, anything: a query is a model's output."""
    shared_forest.search(query, 3)
    assert shared_forest.search(f"{query} gum", 1), "what is unknown does not hide what is known"


@pytest.fixture(scope="module")
def shared_forest(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return forest(tmp_path_factory.mktemp("forest"), 60, 25)
