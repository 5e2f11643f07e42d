"""The engine against brute force (postings_oracle.py): the same chunks, and the same scores to the last bit."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.errors import UserError
from ratchet.retrieval.sparse import engine as engine_module
from ratchet.retrieval.sparse.engine import Bm25, Engine
from ratchet.retrieval.sparse.postings import WINDOW
from ratchet.retrieval.sparse.terms import SparseQuery
from tests.helpers.postings_oracle import Corpus, Query, asked, assert_equal, assert_exact, corpus

LARGEST = float(np.finfo(np.float32).max)
# The smallest and the largest bfloat16 above 0, and the 1.0 between them.
LEAST, ONE, MOST = 1, 0x3F80, 0x7F7F
DEFAULT = Bm25(0.9, 0.4)

WEIGHTS = st.one_of(
    st.sampled_from([1.0, 1.0, 2.0, -1.0, 0.0, 1e30, 1e-30, -1e30, LARGEST, -LARGEST, 1e-45]),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)
# Terms 7 and 8 are in no corpus.
QUERIES = st.lists(st.lists(st.tuples(st.integers(0, 8), WEIGHTS), max_size=8), max_size=6)
FREQUENCIES = st.sampled_from([1, 1, 1, 2, 3, 9, 80, 500])
VALUES = st.one_of(st.sampled_from([LEAST, ONE, MOST]), st.integers(ONE, ONE + 40), st.integers(LEAST, MOST))
KS = st.one_of(st.integers(1, 8), st.sampled_from([100, 1000, 1 << 40]))
CUTS = st.lists(st.integers(0, 30), max_size=3)


def rows(values: st.SearchStrategy[int]) -> st.SearchStrategy[list[dict[int, int]]]:
    return st.lists(st.dictionaries(st.integers(0, 6), values, max_size=6), min_size=1, max_size=30)


@pytest.mark.numeric
@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    rows(FREQUENCIES),
    QUERIES,
    KS,
    CUTS,
    st.sampled_from([0.0, 0.9, 1.5, 1e6]),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.sampled_from([None, DEFAULT]),
    st.sampled_from([1, 3]),
)
def test_bm25_is_brute_force(
    postings: list[dict[int, int]], queries: list[Query], k: int, cuts: list[int], k1: float, b: float,
    built: Bm25 | None, threads: int,
) -> None:  # fmt: skip
    """Shards of different mean lengths, some of them empty, and codes that were made for other k1 and b, included."""
    every = replace(corpus(postings, Bm25(k1, b)), built=built)
    with tempfile.TemporaryDirectory() as folder:
        engine = every.engine(Path(folder), [min(cut, len(postings)) for cut in cuts], threads)
        assert_exact(engine, every, queries, k)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_blocks_are_bounded_by_the_parameters_that_are_asked(tmp_path: Path, k: int) -> None:
    """All of these chunks have one score, and the code of the last alone was made for as much."""
    postings = [{1: frequency} for frequency in (1, 2, 1, 1, 80)]
    every = replace(corpus(postings, Bm25(0.9, 1.0)), built=DEFAULT)
    assert_exact(every.engine(tmp_path, [], 1), every, [[(1, 1.0)]], k)


@pytest.mark.numeric
@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(rows(VALUES), QUERIES, KS, CUTS, st.sampled_from([1, 3]))
def test_learned_sparse_is_brute_force(
    postings: list[dict[int, int]], queries: list[Query], k: int, cuts: list[int], threads: int
) -> None:
    every = corpus(postings)
    with tempfile.TemporaryDirectory() as folder:
        engine = every.engine(Path(folder), [min(cut, len(postings)) for cut in cuts], threads)
        assert_exact(engine, every, queries, k)


# Over several windows: every kind of block

CHUNKS = 2 * WINDOW + 4321
DENSITIES = (1.0, 0.9, 0.3, 0.05, 0.01, 0.001)
ONE_WINDOW, LAST_WINDOW, RUNS, SHORT = range(len(DENSITIES), len(DENSITIES) + 4)
TERMS = SHORT + 4


def lists(random: np.random.Generator, bm25: bool) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    chosen = [np.flatnonzero(random.random(CHUNKS) < density) for density in DENSITIES]
    chosen.append(np.arange(WINDOW, 2 * WINDOW, 3))
    chosen.append(np.arange(2 * WINDOW + 7, CHUNKS, 50))
    chosen.append(np.concatenate([np.arange(first, first + 90) for first in range(5, CHUNKS - 90, 9000)]))
    chosen += [
        np.array(some) for some in ([0], [WINDOW - 1, WINDOW], [3, WINDOW + 3, CHUNKS - 1], [1, 2, 3, CHUNKS - 2])
    ]
    values = {}
    for term, chunks in enumerate(chosen):
        if bm25:
            # Frequencies that share a code with smaller ones are the exceptions, and rare.
            value = np.where(random.random(len(chunks)) < 0.999, random.geometric(0.7, len(chunks)), 3000)
        else:
            value = random.integers(ONE - 200, ONE + 200, len(chunks))
            value = np.where(random.random(len(chunks)) < 0.999, value, random.integers(LEAST, MOST, len(chunks)))
        values[term] = (chunks, value)
    return values


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@cache
def large(folder: Path, bm25: Bm25 | None) -> tuple[Corpus, Engine, Engine]:
    """A corpus of three windows, in one shard and in three of which one has a single chunk."""
    every = Corpus(CHUNKS, lists(np.random.default_rng(7), bm25 is not None), bm25)
    name = str(bm25)
    return every, every.engine(folder / name / "one", (), 8), every.engine(folder / name / "cut", (1, WINDOW + 77), 8)


KINDS = pytest.mark.parametrize("bm25", [DEFAULT, None], ids=["bm25", "sparse"])


@pytest.mark.numeric
@pytest.mark.slow
@KINDS
@settings(deadline=None, max_examples=20)
@given(
    queries=st.lists(st.lists(st.tuples(st.integers(0, TERMS), WEIGHTS), max_size=12), min_size=1, max_size=3),
    k=st.one_of(st.integers(1, 30), st.integers(1, 3000), st.sampled_from([1023, 1024, 1025, WINDOW + 1, 1 << 40])),
    threads=st.sampled_from([1, 2, 3, 8]),
    split=st.booleans(),
)
def test_every_kind_of_block_over_several_windows(
    folder: Path, bm25: Bm25 | None, queries: list[Query], k: int, threads: int, split: bool
) -> None:
    every, one, cut = large(folder, bm25)
    with pytest.MonkeyPatch.context() as patch:
        if split:
            patch.setattr(engine_module, "SPLIT_WORDS", 1)
        assert_exact(one, every, queries, k, threads=threads)
        assert_exact(cut, every, queries, k, threads=threads)


def test_a_query_in_another_order_weighs_its_terms_the_same() -> None:
    """Also where the sum of what one term comes with depends on the order, to the last bit."""
    query = [(0, 1.0)] * 6 + [(1, 1.0), (0, 2.0**53)]
    every = corpus([{0: ONE, 1: ONE}])
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        engine = every.engine(Path(folder))
        for _ in range(40):
            assert_exact(engine, every, [[query[i] for i in random.permutation(len(query))]], 1)


def usual_queries(count: int) -> list[Query]:
    random = np.random.default_rng(11)
    return [
        [
            (int(term), float(weight))
            for term, weight in zip(random.permutation(TERMS)[:n], random.random(n) + 0.1, strict=True)
        ]
        for n in random.integers(1, 9, count)
    ]


@pytest.mark.slow
@pytest.mark.numeric
@KINDS
def test_neither_threads_nor_the_batch_nor_the_split_change_a_bit(
    folder: Path, bm25: Bm25 | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, one, cut = large(folder, bm25)
    queries = [asked(query, bm25) for query in usual_queries(30)]
    alone = [one.search([query], 20, threads=1)[0] for query in queries]
    assert_equal(alone[:5], [every.ranking(query, 20) for query in usual_queries(30)[:5]])
    for words in (engine_module.SPLIT_WORDS, 1):
        monkeypatch.setattr(engine_module, "SPLIT_WORDS", words)
        for engine in (one, cut):
            for threads in (1, 2, 3, 8):
                assert_equal(engine.search(queries, 20, threads=threads), alone)
                assert_equal([engine.search([query], 20, threads=threads)[0] for query in queries[:8]], alone[:8])
                assert_equal(engine.search(queries[:3], 20, threads=threads), alone[:3])


@pytest.mark.slow
@KINDS
def test_callers_on_many_threads_do_not_disturb_each_other(folder: Path, bm25: Bm25 | None) -> None:
    _, one, _ = large(folder, bm25)
    queries = [asked(query, bm25) for query in usual_queries(60)]
    alone = [one.search([query], 20, threads=1)[0] for query in queries]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda query: one.search([query], 20)[0], queries))
    assert_equal(together, alone)


@pytest.mark.slow
@KINDS
def test_a_shorter_search_is_the_beginning_of_a_longer_one(folder: Path, bm25: Bm25 | None) -> None:
    _, one, _ = large(folder, bm25)
    for query in usual_queries(4):
        (whole,) = one.search([asked(query, bm25)], CHUNKS)
        for k in (1, 2, 3, 10, 999, 1000, 1001, 5000):
            (best,) = one.search([asked(query, bm25)], k)
            assert best.chunks.tolist() == whole.chunks[:k].tolist()
            assert best.scores.tolist() == whole.scores[:k].tolist()


@pytest.mark.slow
@KINDS
def test_asking_for_lists_ahead_changes_nothing(
    folder: Path, bm25: Bm25 | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the index is larger than the memory."""
    every, one, cut = large(folder, bm25)
    queries = usual_queries(20)
    expected = [every.ranking(query, 10) for query in queries]
    for ahead in (engine_module.PREFETCH_BYTES, 1):
        monkeypatch.setattr(engine_module, "PREFETCH_BYTES", ahead)
        for engine in (one, cut):
            monkeypatch.setattr(engine, "_fetch", True)
            for threads in (1, 2):
                assert_equal(engine.search([asked(q, bm25) for q in queries], 10, threads=threads), expected)
                assert_equal(engine.search([asked(queries[0], bm25)], 10, threads=threads), expected[:1])


# Odd corpora


@pytest.mark.slow
@KINDS
def test_one_chunk_in_the_last_window_and_all_scores_tied(tmp_path: Path, bm25: Bm25 | None) -> None:
    everywhere = np.arange(WINDOW + 1)
    every = Corpus(WINDOW + 1, {0: (everywhere, np.full(WINDOW + 1, 5)), 1: (everywhere[-1:], np.array([1]))}, bm25)
    engine = every.engine(tmp_path)
    for k in (1, 2, 1000, 1024, 5000, WINDOW, WINDOW + 1, WINDOW + 2):
        assert_exact(engine, every, [[(1, 1.0)], [(0, 1.0)], [(0, 1.0), (1, -1e-3)], [(0, 1e-3), (1, 1.0)]], k)
    (ties,) = engine.search([asked([(0, 1.0)], bm25)], 1000)
    if bm25 is None:
        assert len(set(ties.scores.tolist())) == 1 and ties.chunks.tolist() == list(range(1000))


@pytest.mark.slow
def test_shards_of_very_different_lengths_share_one_mean(tmp_path: Path) -> None:
    """A code bounds a weight beside its own shard's mean length; beside the whole index's the weight can be larger."""
    random = np.random.default_rng(3)
    short = [{int(random.integers(0, 5)): 1} for _ in range(300)]
    long = [
        {int(term): int(random.integers(1, 4)) for term in random.integers(0, 5, 3)} | {6: 2000} for _ in range(300)
    ]
    every = corpus(short + long, Bm25(1.5, 1.0))
    queries: list[Query] = [[(0, 1.0)], [(0, 1.0), (1, 1.0), (2, 3.0)], [(6, 1.0), (3, 1.0)]]
    for cuts in ([300], [100, 300, 500], [1, 599]):
        engine = every.engine(tmp_path / str(cuts), cuts, 3)
        for k in (1, 5, 50, 600):
            assert_exact(engine, every, queries, k)


def test_a_score_of_exactly_nothing_is_no_hit(tmp_path: Path) -> None:
    """Among so many postings that the few candidates are looked up one by one."""
    many = np.arange(10, 20_000)
    lists = {0: np.array([5, 6]), 1: np.array([5]), 2: many}
    every = Corpus(20_000, {term: (chunks, np.full(len(chunks), ONE)) for term, chunks in lists.items()})
    query: Query = [(0, 1.0), (1, -1.0), (2, -1e-3)]
    assert every.scores(query)[5] == 0
    for k in (1, 2, 5):
        assert_exact(every.engine(tmp_path / str(k)), every, [query], k)


def test_what_the_rounding_of_bounds_loses_is_allowed_for(tmp_path: Path) -> None:
    """A chunk whose thirty small weights sum to barely more than another's single one, bounds as tight as can be."""
    every = corpus([{0: ONE}, dict.fromkeys(range(1, 31), ONE)])
    engine = every.engine(tmp_path)
    random = np.random.default_rng(5)
    queries: list[Query] = []
    for _ in range(60):
        small = random.random(30).astype(np.float32)
        one = np.nextafter(np.float32(small.sum(dtype=np.float64)), np.float32(0))
        queries.append([(0, float(one)), *((i + 1, float(weight)) for i, weight in enumerate(small))])
    assert all(every.ranking(query, 1).chunks.tolist() == [1] for query in queries)
    assert_exact(engine, every, queries, 1)


# What is refused


@KINDS
@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_weights_that_are_no_numbers_are_refused_and_leave_nothing_behind(
    folder: Path, bm25: Bm25 | None, weight: float
) -> None:
    every, one, _ = large(folder, bm25)
    terms = asked([(0, 1.0), (1, 1.0)], bm25).terms
    with pytest.raises(UserError, match="weights must be finite"):
        one.search([asked([(2, 1.0)], bm25), SparseQuery(terms, np.array([1.0, weight]))], 5)
    assert_exact(one, every, usual_queries(3), 5)
