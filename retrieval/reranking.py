"""Reranking: the best passages of a search, scored again by a cross-encoder that reads the query with each of them.

Source: Nogueira and Cho 2019, "Passage Re-ranking with BERT" (arXiv 1901.04085). The model runs in this process, by
sentence-transformers, or is a server's behind `/rerank` (vLLM's, or another in Jina's and Cohere's format).

Exactness: the first `depth` passages of the index are all scored, and a search finds no others, so that its pages fit
together. The scores are not exact: their last digits depend on the device and on what was scored in the same batch,
which may swap passages whose scores differ by no more than these. Equal scores keep the index's order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from ratchet.core.config import EncoderConfig, RerankConfig
from ratchet.core.errors import UserError, first_line
from ratchet.core.installed import install
from ratchet.core.records import PartRank, Passage, with_title
from ratchet.core.text import replace_surrogates
from ratchet.retrieval.encoders.served import REQUESTS, ModelServer
from ratchet.retrieval.index import Store, store_of
from ratchet.retrieval.layout import reranked_digest
from ratchet.retrieval.retriever import BatchSearch, Retriever, search_batch

PAIRS_AT_ONCE = 64
"""Pairs of a query and a passage in one batch of the model."""
QUERIES_AT_ONCE = 64
"""Queries of a batch of searches whose passages are in memory together."""
RANKERS = ("ForSequenceClassification", "ForCausalLM")
"""Ends of the names of architectures that sentence-transformers takes as cross-encoders without new weights."""
RETRIEVED = "retrieved"
"""The name, in a passage's `ranks`, of its place before it was reranked."""

Asked = tuple[str, Sequence[str]]
"""A query and the texts to score for it."""
Score = Callable[[Sequence[Asked]], list[list[float]]]
"""A function from queries with texts to the scores of each; threads may call it at once."""


class RerankedIndex(BatchSearch):
    """A Retriever that ranks the first `depth` passages of another by the model's score; any number of threads may
    search it at once."""

    def __init__(self, index: Retriever, config: RerankConfig, score: Score | None = None) -> None:
        """`score`: in place of the config's model, which is loaded by the first search."""
        self.index = index
        self.store: Store | None = store_of(index)
        self.digest = reranked_digest(config, index.digest)
        self._depth = config.depth
        self._score = score or open_reranker(config)

    def _search(self, queries: Sequence[str], k: int, offset: int) -> list[list[Passage]]:
        """Raises SearchError where the model's server gives no answer."""
        ranked: list[list[Passage]] = []
        left = iter(queries)
        while group := list(islice(left, QUERIES_AT_ONCE)):
            found = search_batch(self.index, group, self._depth)
            asked = [
                (query, [with_title(passage.title, passage.text) for passage in passages])
                for query, passages in zip(group, found, strict=True)
            ]
            scored = zip(found, self._score(asked), strict=True)
            ranked += [_reranked(passages, scores)[offset : offset + k] for passages, scores in scored]
        return ranked


def _reranked(passages: Sequence[Passage], scores: Sequence[float]) -> list[Passage]:
    places = sorted(range(len(passages)), key=lambda place: -scores[place])  # stable: equal scores keep their order
    return [
        passages[at].model_copy(
            update={
                "score": scores[at],
                "ranks": passages[at].ranks | {RETRIEVED: PartRank(rank=at + 1, score=passages[at].score)},
            }
        )
        for at in places
    ]


def open_reranker(config: RerankConfig) -> Score:
    """Return the function that scores. A local model is loaded by its first call."""
    if config.url is None:
        return CrossEncoderReranker(config)
    server = ModelServer(config.url, config.model, config.api_key_env, "index.rerank")

    def score(asked: Sequence[Asked]) -> list[list[float]]:
        if len(asked) == 1:
            return [server.rerank(*asked[0])]
        with ThreadPoolExecutor(REQUESTS) as pool:
            return list(pool.map(lambda one: server.rerank(*one), asked))

    return score


class CrossEncoderReranker:
    """A cross-encoder of this process. What several threads ask for while it computes is computed together next, so
    that the searches of all trajectories in flight fill its batches."""

    def __init__(self, config: RerankConfig) -> None:
        self._config = config
        self._waiting: deque[tuple[Sequence[Asked], Future[list[list[float]]]]] = deque()
        self._computing = threading.Lock()
        self._load = cache(lambda: load_cross_encoder(config))

    def __call__(self, asked: Sequence[Asked]) -> list[list[float]]:
        answer: Future[list[list[float]]] = Future()
        self._waiting.append((asked, answer))
        with self._computing:  # whoever comes first computes for all who wait
            if not answer.done():
                self._compute([self._waiting.popleft() for _ in range(len(self._waiting))])
        return answer.result()

    def _compute(self, waiting: Sequence[tuple[Sequence[Asked], Future[list[list[float]]]]]) -> None:
        try:
            pairs = [
                (replace_surrogates(query), replace_surrogates(text))
                for asked, _ in waiting
                for query, texts in asked
                for text in texts
            ]
            scores = iter(self._scores(pairs))
            for asked, answer in waiting:
                answer.set_result([list(islice(scores, len(texts))) for _, texts in asked])
        except BaseException as error:
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)

    def _scores(self, pairs: list[tuple[str, str]]) -> list[float]:
        if not pairs:
            return []
        scores = np.asarray(self._load().predict(pairs, batch_size=PAIRS_AT_ONCE, show_progress_bar=False), np.float64)
        if scores.shape != (len(pairs),):
            raise UserError(
                f"index.rerank.model: {self._config.model} gives {scores.shape[1:]} scores of a pair, and a reranker "
                "gives one; name a cross-encoder that was trained to rank"
            )
        if not np.isfinite(scores).all():
            raise UserError(f"index.rerank.model: {self._config.model}: a score is not finite; use dtype: float32")
        return [float(score) for score in scores]


def load_cross_encoder(config: RerankConfig) -> Any:
    """Load the model from safetensors, without running any code of its own. Raises UserError."""
    try:
        import torch
        from sentence_transformers import CrossEncoder
    except ImportError as error:
        raise UserError(f"index.rerank needs sentence-transformers: {install('dense')}") from error
    from ratchet.retrieval.encoders.dense import DTYPE, json_values, safe_folder
    from ratchet.retrieval.encoders.sparse import usable_device

    folder = safe_folder(EncoderConfig(path=config.model, revision=config.revision))
    kinds = json_values(folder / "config.json").get("architectures") or []
    own = json_values(folder / "config_sentence_transformers.json").get("model_type")
    if kinds and own != "CrossEncoder" and not any(kind.endswith(RANKERS) for kind in kinds):
        raise UserError(
            f"index.rerank.model: {config.model} is no cross-encoder ({', '.join(kinds)}), and would get a layer of "
            "random weights; name a model that was trained to rank, such as BAAI/bge-reranker-v2-m3"
        )
    try:
        return CrossEncoder(
            str(folder),
            device=str(usable_device(config.device)),
            trust_remote_code=False,
            local_files_only=True,
            max_length=config.max_length,
            model_kwargs={"use_safetensors": True, "dtype": getattr(torch, config.dtype or DTYPE)},
        )
    except UserError:
        raise
    except Exception as error:  # the readers of damaged files raise anything
        raise UserError(f"{folder}: cannot load the cross-encoder: {first_line(error)}") from error
