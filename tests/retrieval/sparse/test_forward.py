"""Approximate search that scores by rows, against the one that scores by posting lists."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from index_build.forward import build_shard_rows
from ratchet.errors import UserError
from retrieval.layout import read_rows_manifest
from retrieval.shards import Shard
from retrieval.sparse.engine import EXACT, Engine, Pruning
from retrieval.sparse.forward import VALUE_BITS, RowEngine, Rows
from retrieval.sparse.recall import choose_pruning, mean_recall
from tests.helpers.postings_oracle import Corpus, Query, asked
from tests.retrieval.sparse.test_recall import same, skewed

K = 10
CHUNKS = 70_000
CUTS = (400, 2000)
"""So that there are short lists, blocks of all kinds, and two windows of one shard."""


@pytest.fixture(scope="module")
def corpus() -> tuple[Corpus, list[Query]]:
    return skewed(CHUNKS)


@pytest.fixture(scope="module")
def shards(corpus: tuple[Corpus, list[Query]], tmp_path_factory: pytest.TempPathFactory) -> list[Shard]:
    engine = corpus[0].engine(tmp_path_factory.mktemp("rows"), CUTS)
    shards = [postings.shard for postings in engine._shards]
    for shard in shards:
        build_shard_rows(rows_of(shard), shard)
    return shards


def rows_of(shard: Shard) -> Path:
    return shard.folder.parent / "rows" / shard.folder.name


def opened(shard: Shard) -> Rows:
    manifest = read_rows_manifest(rows_of(shard), shard.manifest.digest)
    assert manifest is not None
    return Rows(rows_of(shard), manifest, shard)


def test_rows_hold_every_posting_in_term_order(corpus: tuple[Corpus, list[Query]], shards: list[Shard]) -> None:
    assert any(len(shard.array("exception_keys")) for shard in shards)
    parts = []
    for shard in shards:
        own = opened(shard)
        chunks = np.repeat(np.arange(len(shard)), np.diff(own.ends)) + shard.first_chunk
        parts.append(np.stack([chunks, own.rows >> VALUE_BITS, own.rows & ((1 << VALUE_BITS) - 1)]))
    lists = corpus[0].lists
    expected = np.concatenate([[c, np.full(len(c), term), values] for term, (c, values) in lists.items()], axis=1)
    assert np.array_equal(np.concatenate(parts, axis=1), expected[:, np.lexsort((expected[1], expected[0]))])


@pytest.mark.parametrize("threads", [1, 2])
def test_rankings_are_those_of_posting_lists_to_the_last_bit(
    corpus: tuple[Corpus, list[Query]], shards: list[Shard], threads: int
) -> None:
    by_lists = Engine(shards, None, threads)
    by_rows = RowEngine(shards, [opened(shard) for shard in shards], threads)
    sparse = [asked([*query, (10_000, 1.0), (5, -0.5)], None) for query in corpus[1]]  # a term that is in no shard
    few = (np.arange(CHUNKS) % 5000 == 0).astype(np.uint8)  # fewer match than are asked for
    for allowed in (None, (np.arange(CHUNKS) % 3 == 0).astype(np.uint8), few):
        parts = None if allowed is None else [allowed[low:high] for low, high in pairwise((0, *CUTS, CHUNKS))]
        for pruning in (EXACT, Pruning(0.6, 2), Pruning(0.9, 16)):
            expected = by_lists.search(sparse, 15, parts, pruning=pruning)
            assert same(by_rows.search(sparse, 15, parts, pruning=pruning), expected)
            assert same([by_rows.search([query], 15, parts, pruning=pruning)[0] for query in sparse[:3]], expected[:3])


def test_rows_make_more_candidates_worth_their_work(corpus: tuple[Corpus, list[Query]], shards: list[Shard]) -> None:
    sparse = [asked(query, None) for query in corpus[1]]
    by_rows = RowEngine(shards, [opened(shard) for shard in shards], 2)
    pruning, recall, work = choose_pruning(by_rows, sparse, 0.9, K)
    assert pruning != EXACT and work < 0.9
    assert recall == mean_recall(by_rows.search(sparse[1::2], K), by_rows.search(sparse[1::2], K, pruning=pruning))
    assert by_rows.work(sparse, K, pruning) < Engine(shards, None, 1).work(sparse, K, pruning)


def test_files_that_do_not_fit_together_are_refused(shards: list[Shard]) -> None:
    assert read_rows_manifest(rows_of(shards[0]), shards[1].manifest.digest) is None
    manifest = read_rows_manifest(rows_of(shards[0]), shards[0].manifest.digest)
    assert manifest is not None
    with pytest.raises(UserError, match="do not fit together"):
        Rows(rows_of(shards[0]), manifest, shards[1])
    with pytest.raises(UserError, match="do not fit together"):
        Rows(rows_of(shards[1]), manifest, shards[0])
