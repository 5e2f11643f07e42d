"""Approximate search by short lists and rows, against brute force."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from index_build.forward import build_shard_rows
from ratchet.errors import UserError
from retrieval.encoders.vectors import WEIGHTS
from retrieval.layout import read_rows_manifest
from retrieval.sparse import engine as engine_module
from retrieval.sparse.engine import EXACT, Pruning
from retrieval.sparse.forward import VALUE_BITS, RowEngine, ShortLists
from retrieval.sparse.recall import choose_pruning, mean_recall
from tests.helpers.postings_oracle import Corpus, asked
from tests.retrieval.sparse.test_recall import same, skewed

K = 10
CHUNKS = 70_000
CUTS = (400, 2000)
"""So that there are short lists, and blocks of all kinds, of two windows."""
KEPT = 0.4


def opened(every: Corpus, folder: Path, threads: int = 2) -> RowEngine:
    """An engine over a corpus, written as shards with their rows."""
    shards = [postings.shard for postings in every.engine(folder, CUTS)._shards]
    short = []
    for shard in shards:
        place = folder / "approximate" / shard.folder.name
        build_shard_rows(place, shard, KEPT)
        manifest = read_rows_manifest(place, shard.manifest.digest)
        assert manifest is not None
        short.append(ShortLists(place, manifest, shard))
    return RowEngine(shards, short, threads)


@pytest.fixture(scope="module")
def corpus() -> tuple[Corpus, list[list[tuple[int, float]]]]:
    every, queries = skewed(CHUNKS)
    return every, [list(query) for query in queries]


@pytest.fixture(scope="module")
def engine(corpus: tuple[Corpus, object], tmp_path_factory: pytest.TempPathFactory) -> RowEngine:
    return opened(corpus[0], tmp_path_factory.mktemp("rows"))


def test_rows_hold_every_posting_in_term_order(corpus: tuple[Corpus, object], engine: RowEngine) -> None:
    assert any(len(shard.array("exception_keys")) for shard in engine._rows)
    chunks, terms, values = [], [], []
    for shard in engine._rows:
        chunks.append(np.repeat(np.arange(len(shard)), np.diff(shard.row_ends)) + shard.first_chunk)
        terms.append(shard.rows >> VALUE_BITS)
        values.append(shard.rows & ((1 << VALUE_BITS) - 1))
    found = np.stack([np.concatenate(each).astype(np.int64) for each in (chunks, terms, values)])
    lists = corpus[0].lists
    expected = np.concatenate([[c, np.full(len(c), term), v] for term, (c, v) in lists.items()], axis=1)
    assert np.array_equal(found, expected[:, np.lexsort((expected[1], expected[0]))])


def test_short_lists_have_the_terms_that_weigh_most_in_each_chunk(
    corpus: tuple[Corpus, object], engine: RowEngine
) -> None:
    lists = corpus[0].lists
    weights = np.zeros((CHUNKS, len(lists)))
    for term, (chunks, values) in lists.items():
        weights[chunks, term] = WEIGHTS[values]
    lengths = (weights > 0).sum(axis=1)
    wanted = np.ceil(KEPT * lengths).astype(int)
    ordered = -np.sort(-weights, axis=1)
    least = ordered[np.arange(CHUNKS), np.maximum(wanted - 1, 0)]
    kept = 0
    for term in lists:
        (found,) = engine._short.search([asked([(term, 1.0)], None)], CHUNKS)
        has = np.isin(np.arange(CHUNKS), found.chunks)
        assert has[(weights[:, term] >= least) & (weights[:, term] > 0)].all()
        # Codes of a byte tell weights apart that differ by more than a hundredth or so.
        assert not has[weights[:, term] < 0.9 * least - 0.01].any()
        kept += has.sum()
    assert wanted.sum() <= kept < 1.2 * wanted.sum()


def test_what_is_found_has_exact_scores_and_the_recall_that_was_measured(
    corpus: tuple[Corpus, list[list[tuple[int, float]]]], engine: RowEngine
) -> None:
    every, queries = corpus
    sparse = [asked(query, None) for query in queries]
    pruning, recall, work = choose_pruning(engine, sparse, 0.95, K)
    assert pruning != EXACT and work < 0.7
    found = engine.search(sparse, K, pruning=pruning)
    truth = engine.search(sparse, K)
    assert same(truth, [every.ranking(query, K) for query in queries])
    assert recall == mean_recall(truth[1::2], found[1::2]) > 0.9
    for query, ranking in zip(queries, found, strict=True):
        scores = every.scores(query)
        assert ranking.scores.tolist() == scores[ranking.chunks].tolist()
        assert ranking.chunks.tolist() == ranking.chunks[np.lexsort((ranking.chunks, -ranking.scores))].tolist()


def test_results_depend_neither_on_threads_nor_on_other_queries(
    corpus: tuple[Corpus, list[list[tuple[int, float]]]], engine: RowEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "SPLIT_WORDS", 100)  # so that queries are split
    sparse = [asked(query, None) for query in corpus[1][:6]]
    few = Pruning(0.6, 2)
    truth = engine.search(sparse, K, threads=1, pruning=few)
    assert not same(truth, engine.search(sparse, K))  # something is left out
    assert same(truth, engine.search(sparse, K, threads=2, pruning=few))
    assert same(truth, [engine.search([query], K, threads=2, pruning=few)[0] for query in sparse])


def test_chunks_that_must_be_left_out_are_and_few_matches_are_all_found(
    corpus: tuple[Corpus, list[list[tuple[int, float]]]], engine: RowEngine
) -> None:
    every, queries = corpus
    allowed = (np.arange(CHUNKS) % 3 == 0).astype(np.uint8)
    bounds = [0, *CUTS, CHUNKS]

    def search(k: int) -> list[object]:
        parts = [allowed[low:high] for low, high in itertools.pairwise(bounds)]
        return list(engine.search([asked(query, None) for query in queries], k, parts, pruning=Pruning(1.0, 8)))

    found = search(K)
    assert all(allowed[ranking.chunks].all() for ranking in found)
    assert mean_recall([every.ranking(query, K, allowed) for query in queries], found) > 0.9
    allowed[np.arange(CHUNKS) % 5000 != 0] = 0
    assert [len(ranking) for ranking in search(15)] == [len(every.ranking(q, 15, allowed)) for q in queries]


def test_files_that_do_not_fit_together_are_refused(corpus: tuple[Corpus, object], engine: RowEngine) -> None:
    shard = engine._rows[0]
    manifest = read_rows_manifest(shard._rows, shard.manifest.digest)
    assert manifest is not None and read_rows_manifest(shard._rows, "another") is None
    wrong = manifest.model_copy(update={"files": manifest.files | {"row_ends": manifest.files["regions"]}})
    (shard._rows / "row_ends").rename(shard._rows / "kept")
    (shard._rows / "row_ends").write_bytes(bytes(8))
    try:
        with pytest.raises(UserError, match="do not fit together"):
            ShortLists(shard._rows, wrong.model_copy(update={"files": manifest.files}), engine._shards[0].shard)
    finally:
        (shard._rows / "kept").rename(shard._rows / "row_ends")
