"""The retrieval benchmark: its judge sees mistakes, and its engines give the true ranking."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

pytest.importorskip("bm25s")
pytest.importorskip("tantivy")

import bm25s.numba.retrieve_utils

from benchmarks.retrieval.baselines import Bm25s, Engine, Lion, Tantivy
from benchmarks.retrieval.checkout import Checkout
from benchmarks.retrieval.corpus import (
    Columns,
    Query,
    Rows,
    bm25_rows,
    columns_of,
    learned_rows,
    queries_for,
)
from benchmarks.retrieval.engines import Ours
from benchmarks.retrieval.oracle import Oracle, top
from ratchet.errors import UserError
from ratchet.packages import ROOT
from retrieval.index import Ranking

K = 10


def corpus(kind: str) -> tuple[Rows, Columns, list[Query]]:
    rows = bm25_rows(700, 3000, 5)
    if kind == "learned":
        rows = learned_rows(rows, 6)
    columns = columns_of(rows)
    return rows, columns, queries_for(columns, 20, 6, kind == "learned", 7)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """bm25s compiles its functions in every process, for longer than all of these tests take: here they run as they
    are written."""
    for module in (bm25s.numba.retrieve_utils, bm25s.numba.selection):
        for name, value in list(vars(module).items()):
            if isinstance(value, Dispatcher):
                monkeypatch.setattr(module, name, value.py_func)


ENGINES = [Ours(), Lion(), Bm25s(), Tantivy()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bm25", "learned"])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
def test_engines_agree_with_brute_force(engine: Engine, kind: str, tmp_path: Path) -> None:
    if kind not in engine.kinds:
        pytest.skip("not its kind of vectors")
    rows, columns, queries = corpus(kind)
    engine.build(engine.prepare(rows), tmp_path)
    engine.open(tmp_path)
    asked = queries if engine.weighted else [Query(q.terms, np.ones_like(q.weights)) for q in queries]
    for threads in (1, 2):
        verdict = Oracle(columns).judge(engine.search(queries, K, threads), asked, K)
        if isinstance(engine, Tantivy):  # lengths in one byte
            assert float(verdict.split()[0]) > 0.9 if verdict.endswith("ids") else verdict == "float32"
        else:
            assert verdict in (("bits", "float64") if isinstance(engine, Ours) else ("float32",))


@pytest.mark.slow
def test_the_engine_of_another_checkout_answers_as_its_own_does(tmp_path: Path) -> None:
    rows, columns, queries = corpus("learned")
    other = Checkout(ROOT)
    other.build(other.prepare(rows), tmp_path)
    other.open(tmp_path)
    assert Oracle(columns).judge(other.search(queries, K, 2), queries, K) in ("bits", "float64")
    assert min(other.timed(queries, K, 1)) > 0
    assert 0 < other.hot_bytes(tmp_path, columns) < other.size(tmp_path, columns)
    other.close()
    with pytest.raises(UserError, match="no checkout"):
        Checkout(tmp_path)


def test_judge_sees_every_kind_of_mistake() -> None:
    _, columns, queries = corpus("bm25")
    oracle, query = Oracle(columns), queries[0]
    scores = oracle.scores(query)
    truth = top(scores, K)
    assert oracle.judge([truth], [query], K) == "bits"
    assert oracle.judge([Ranking(truth.scores * (1 + 1e-14), truth.chunks)], [query], K) == "float64"
    assert oracle.judge([Ranking(truth.scores.astype(np.float32).astype(float), truth.chunks)], [query], K) == "float32"
    assert oracle.judge([Ranking(truth.scores * 1.001, truth.chunks)], [query], K).endswith("ids")
    wrong = truth.chunks.copy()
    wrong[-1] = int(scores.argmin())
    assert oracle.judge([Ranking(truth.scores, wrong)], [query], K) == "0.90 ids"
    assert oracle.judge([Ranking(truth.scores[:-1], truth.chunks[:-1])], [query], K) == "0.90 ids"
    assert oracle.judge([Ranking(truth.scores, np.full(K, truth.chunks[0]))], [query], K) == "0.10 ids"
