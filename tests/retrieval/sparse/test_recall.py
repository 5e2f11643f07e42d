"""Approximate search against brute force: what it returns has exact scores, and it finds the share that it says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index_build.build import build_index, remove_documents
from ratchet.config import IndexConfig, SearchConfig, parse
from ratchet.errors import UserError
from retrieval.index import Index, Ranking
from retrieval.loader import open_index
from retrieval.sparse import engine as engine_module
from retrieval.sparse.engine import EXACT, Bm25, Pruning
from retrieval.sparse.kernels import score_chunks, search_shard
from retrieval.sparse.ranker import SparseRanker
from retrieval.sparse.recall import RECALL, choose_pruning, mean_recall
from tests.helpers.postings_oracle import Corpus, Query, asked
from tests.helpers.tiny_index import index_config, shared_tokenizer, write_documents

K = 10
CHUNKS = 20_000
SETTINGS: dict[str, Any] = {"stemmer": None, "stop_words": False, "shard_documents": 1500}
HALF = Pruning(0.6, 4)


def skewed(chunks: int, bm25: Bm25 | None = None, seed: int = 3) -> tuple[Corpus, list[Query]]:
    """A corpus of common and rare terms, and queries whose weight is mostly on rare ones, as encoders weigh them."""
    draw = np.random.default_rng(seed)
    shares = np.geomspace(0.5, 0.01, 60)
    lists = {}
    for term, share in enumerate(shares):
        found = np.flatnonzero(draw.random(chunks) < share)
        logits = np.exp(draw.standard_normal(len(found)).astype(np.float32)) * (0.1 + 3 * (term / 60) ** 2)
        values = logits.astype(np.float32).view(np.uint32) >> 16 if bm25 is None else draw.geometric(0.6, len(found))
        lists[term] = (found, values.astype(np.int64))
    queries: list[Query] = []
    for _ in range(40):
        terms = draw.choice(60, 12, replace=False)
        weights = draw.lognormal(0, 0.5, 12) * (0.05 + 3 * (terms / 60) ** 3)
        queries.append(list(zip(terms.tolist(), weights.astype(np.float32).tolist(), strict=True)))
    return Corpus(chunks, lists, bm25), queries


def same(found: list[Ranking], others: list[Ranking]) -> bool:
    return all(
        np.array_equal(a.chunks, b.chunks) and np.array_equal(a.scores, b.scores)
        for a, b in zip(found, others, strict=True)
    )


@pytest.fixture(autouse=True)
def cheap_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that something is saved in corpora as small as these."""
    monkeypatch.setattr(engine_module, "COLD_LOOKUP", 1)


@pytest.mark.parametrize("bm25", [None, Bm25(0.9, 0.4)], ids=["learned", "bm25"])
@pytest.mark.parametrize("cuts", [(), (1000, 1000, 12_000)], ids=["one shard", "four shards"])
def test_what_is_found_has_exact_scores_and_the_recall_that_was_measured(
    bm25: Bm25 | None, cuts: tuple[int, ...], tmp_path: Path
) -> None:
    every, queries = skewed(CHUNKS, bm25)
    engine = every.engine(tmp_path, cuts, 2)
    sparse = [asked(query, bm25) for query in queries]
    pruning, recall, work = choose_pruning(engine, sparse, 0.95, K)
    assert pruning != EXACT and work < 0.9
    found = engine.search(sparse, K, pruning=pruning)
    truth = [every.ranking(query, K) for query in queries]
    assert recall == mean_recall(truth[1::2], found[1::2])
    assert mean_recall(truth[::2], found[::2]) >= 0.95
    for query, ranking in zip(queries, found, strict=True):
        scores = every.scores(query)
        assert len(ranking) == K
        assert ranking.scores.tolist() == scores[ranking.chunks].tolist()
        assert ranking.chunks.tolist() == ranking.chunks[np.lexsort((ranking.chunks, -ranking.scores))].tolist()


def test_results_depend_neither_on_threads_nor_on_other_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "SPLIT_WORDS", 1000)  # so that queries are split
    every, queries = skewed(70_000)
    engine = every.engine(tmp_path, [], 8)
    sparse = [asked(query, None) for query in queries[:6]]
    truth = engine.search(sparse, K, threads=1, pruning=HALF)
    assert not same(truth, engine.search(sparse, K))  # something is left out
    for threads in (2, 8):
        assert same(truth, engine.search(sparse, K, threads=threads, pruning=HALF))
        assert same(truth, [engine.search([query], K, threads=threads, pruning=HALF)[0] for query in sparse])


def test_chunks_that_must_be_left_out_are_and_few_matches_are_all_found(tmp_path: Path) -> None:
    every, queries = skewed(CHUNKS)
    engine = every.engine(tmp_path, [8_000])
    allowed = (np.arange(CHUNKS) % 3 == 0).astype(np.uint8)
    sparse = [asked(query, None) for query in queries]
    found = engine.search(sparse, K, [allowed[:8_000], allowed[8_000:]], pruning=HALF)
    truth = [every.ranking(query, K, allowed) for query in queries]
    assert all(allowed[ranking.chunks].all() for ranking in found)
    assert mean_recall(truth, found) > 0.8
    allowed[6000:] = 0
    allowed[(np.arange(CHUNKS) % 300 != 0)] = 0
    few = engine.search(sparse, 15, [allowed[:8_000], allowed[8_000:]], pruning=HALF)
    assert [len(ranking) for ranking in few] == [len(every.ranking(query, 15, allowed)) for query in queries]


def test_every_kind_of_search_runs_the_same_compiled_code(tmp_path: Path) -> None:
    """Numba compiles for seconds for each kind of its arguments: writeable or not, contiguous or not."""
    for bm25 in (None, Bm25(0.9, 0.4)):
        every, queries = skewed(3000, bm25)
        engine = every.engine(tmp_path / str(bm25 is None), [1000])
        sparse = [asked(query, bm25) for query in queries[:4]]
        allowed = np.ones(3000, np.uint8)
        for pruning in (EXACT, HALF):
            for some in (None, [allowed[:1000], allowed[1000:]]):
                engine.search(sparse, K, some, pruning=pruning)
    assert len(search_shard.signatures) == len(score_chunks.signatures) == 1


def test_where_nothing_can_be_saved_search_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every, queries = skewed(3000)
    engine = every.engine(tmp_path)
    monkeypatch.setattr(engine_module, "COLD_LOOKUP", 200)
    assert choose_pruning(engine, [asked(query, None) for query in queries], 0.5, K) == (EXACT, 1.0, 1.0)


def test_a_list_of_every_chunk_is_less_work_than_one_of_a_twentieth(tmp_path: Path) -> None:
    """It is added 64 chunks at a time, in 0.029 ns a chunk, and the other posting by posting, in 0.8 to 0.9 ns each."""
    chunks = np.arange(CHUNKS)
    lists = {term: (found, np.full(len(found), 0x3F80)) for term, found in enumerate((chunks, chunks[::20]))}
    engine = Corpus(CHUNKS, lists).engine(tmp_path)
    every, twentieth = (engine.work([asked([(term, 1.0)], None)], 1) for term in lists)
    assert every < twentieth


def words(number: int) -> str:
    """A document whose words recur in others as those of real texts do: few in most, most in few."""
    draw = np.random.default_rng(number)
    return " ".join(f"w{int(term)}" for term in draw.zipf(1.3, 60) % 3000)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recall")
    documents = [{"id": f"d{i}", "text": words(i)} for i in range(2000)]
    build_index(index_config(folder, documents, **SETTINGS), shared_tokenizer(), "tiny")
    return folder


@pytest.fixture
def config(built: Path, tmp_path: Path) -> IndexConfig:
    """Of a copy of the index, with questions of its own."""
    shutil.copytree(built / "index", tmp_path / "index")
    questions = write_documents(tmp_path / "questions.jsonl", [{"question": words(i)[:60]} for i in range(5000, 5060)])
    return IndexConfig(
        path=str(tmp_path / "index"),
        documents=(str(built / "documents.jsonl"),),
        search=SearchConfig(recall=0.9, questions=str(questions)),
        **SETTINGS,
    )


def pruning_of(index: object) -> Pruning:
    assert isinstance(index, Index) and isinstance(index.ranker, SparseRanker)
    return index.ranker.pruning


@pytest.mark.slow
def test_recall_is_measured_once_and_again_after_a_change(
    config: IndexConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = open_index(config.model_copy(update={"search": SearchConfig()}))
    assert not (Path(config.path) / RECALL).exists()
    index = open_index(config)
    assert "search finds 0." in capsys.readouterr().err
    assert pruning_of(index) != EXACT
    assert index.digest != exact.digest  # other results are not taken for the same
    best = index.search(words(7), 5)[0]
    assert best.document_id == "d7" and best.score == exact.search(words(7), 1)[0].score
    assert open_index(config).digest == index.digest
    assert "search finds" not in capsys.readouterr().err

    remove_documents(Path(config.path), ["d7"])
    added = write_documents(tmp_path / "more.jsonl", [{"id": "new", "text": f"{words(7)} zebra"}])
    build_index(config.model_copy(update={"documents": (*config.documents, str(added))}), shared_tokenizer(), "tiny")
    changed = open_index(config)
    assert "search finds" in capsys.readouterr().err
    found = [passage.document_id for passage in changed.search(words(7), 100)]
    assert found[0] == "new" and "d7" not in found
    assert [passage.document_id for passage in changed.search("zebra", 5)] == ["new"]


def test_without_questions_words_of_the_index_are_searched(
    config: IndexConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    open_index(config.model_copy(update={"search": SearchConfig(recall=0.9)}))
    assert "200 queries: 12 words of chunks of the index" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ({"search": {"recall": 0}}, "search.recall"),
        ({"search": {"recall": 1.01}}, "search.recall"),
        ({"search": {"depth": 0}}, "search.depth"),
        ({"search": {"recal": 0.9}}, "recall"),
        ({"kind": "dense", "search": {"recall": 0.9}}, "needs kind: bm25 or sparse"),
        ({"engine": "lucene", "search": {"recall": 0.9}}, "engine: ratchet"),
        ({"url": "http://127.0.0.1:1", "search": {"recall": 0.9}}, "the search server's own config"),
    ],
)
def test_a_wrong_value_is_named(index: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parse(IndexConfig, {"path": "indexes/x", **index}, "index")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('{"question": "a"}\n', "there are 1"),
        ('{"question": "a"}\n{"query": "b"}\n', "questions.jsonl:2: .*`question`"),
    ],
)
def test_wrong_questions_are_named(config: IndexConfig, lines: str, problem: str) -> None:
    Path(str(config.search.questions)).write_text(lines)
    with pytest.raises(UserError, match=problem):
        open_index(config)
