"""Models behind an address: vectors of its `/embeddings`, and relevance of its `/rerank`, as vLLM serves both.

    POST {url}/embeddings {model, input: [texts]}              -> {data: [{index, embedding: [numbers]}]}
    POST {url}/rerank     {model, query, documents: [texts]}   -> {results: [{index, relevance_score}]}

The first is OpenAI's, the second Jina's and Cohere's. What is transient is asked again. vLLM refuses what is longer
than its model reads unless it is told to cut it, which other servers need not understand: what a server refuses is
asked again with that. A server that gives no usable answer is a SearchError: a trajectory fails, or a score stays
unfinished, and is made again later; a command ends.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import httpx
import numpy as np

from ratchet.core.errors import UserError
from ratchet.core.http.clients import Answer, BadResponse, is_local, open_client, send_request_sync
from ratchet.core.http.environment import check_environment
from ratchet.core.http.retry import TRANSIENT, Backoff, TryAgain, read_retry_after, retry
from ratchet.core.text import read_json, short_line
from ratchet.retrieval.retriever import SearchError

MAX_BYTES = 64 << 20
"""The limit of one response: 64 vectors of 4,096 numbers, as text, are about 6 MB."""
BACKOFF = Backoff(tries=5)
BATCH = 64
"""Texts of one request for vectors."""
REQUESTS = 16
"""Requests in flight for the vectors of many texts."""
TIMEOUT = 60.0
"""Seconds of one attempt."""
CUT = {"truncate_prompt_tokens": -1}
"""vLLM's field by which it cuts texts to what its model reads, as sentence-transformers does."""
TOO_LONG = (400, 413, 422)
"""Statuses of servers that refuse a text for its length."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ModelServer:
    """One model at one address. Threads may ask it at once."""

    def __init__(self, url: str, model: str, key_env: str, section: str) -> None:
        """`key_env`: the environment variable of the key. `section`: that of the config, for errors. Raises UserError
        where the environment's proxies or certificates cannot be used."""
        self._url, self._model, self._key_env, self._section = url.rstrip("/"), model, key_env, section
        self._key = os.environ.get(key_env, "").strip()
        self._warned = False
        if not is_local(self._url):
            check_environment()  # clients are opened later

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts: float64 [n, dimension]."""
        # Servers refuse an empty text, and a lone surrogate has no UTF-8.
        clean = [_sendable(text) or " " for text in texts]
        batches = [clean[at : at + BATCH] for at in range(0, len(clean), BATCH)]
        if not batches:
            return np.empty((0, 0))
        if len(batches) == 1:
            return self._embed(batches[0])
        with ThreadPoolExecutor(REQUESTS) as pool:
            parts = list(pool.map(self._embed, batches))
        if len({part.shape[1] for part in parts}) > 1:
            raise SearchError(f"{self._url}/embeddings: vectors of different lengths in one answer")
        return np.concatenate(parts)

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the relevance of each text for the query."""
        body = {"query": _sendable(query), "documents": [_sendable(text) or " " for text in texts]}
        return self._ask("rerank", body, lambda answer: read_scores(answer, len(texts)), "scores") if texts else []

    def _embed(self, texts: Sequence[str]) -> np.ndarray:
        body = {"input": list(texts), "encoding_format": "float"}
        return self._ask("embeddings", body, lambda answer: read_vectors(answer, len(texts)), "vectors")

    def _ask(self, path: str, body: dict[str, Any], read: Callable[[bytes], T], what: str) -> T:
        url = f"{self._url}/{path}"
        with open_client(self._key, trust_env=not is_local(url), timeout=TIMEOUT) as client:
            try:
                answer = retry(lambda: self._attempt(client, url, {"model": self._model, **body}), BACKOFF)
            except TryAgain as fault:
                raise SearchError(str(fault)) from fault
        try:
            return read(answer.body)
        except ValueError as error:
            raise SearchError(f"{url} did not answer with {what} ({self._line(error)}); is url right?") from None

    def _attempt(self, client: httpx.Client, url: str, body: dict[str, Any]) -> Answer:
        try:
            answer = send_request_sync(client, client.build_request("POST", url, json=body), MAX_BYTES)
        except (httpx.TransportError, BadResponse) as error:
            raise TryAgain(f"{url}: no answer ({self._line(error) or type(error).__name__})") from error
        if answer.is_success and not answer.busy:
            return answer
        said = self._line(answer.busy or answer.text)
        problem = f"{url} answered {answer.status}: {said or '(nothing)'}"
        if answer.status in (401, 403):
            raise UserError(f"{problem}; the key is read from the variable {self._key_env}")
        if not answer.busy and answer.status not in TRANSIENT:
            if answer.status in TOO_LONG and not body.keys() & CUT:
                with suppress(SearchError):
                    cut = self._attempt(client, url, body | CUT)
                    self._warn_of_cut(url)
                    return cut
            raise SearchError(f"{problem}; the request itself is refused (see {self._section} in the config)")
        raise TryAgain(problem, read_retry_after(answer.headers))

    def _warn_of_cut(self, url: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s: texts that are longer than the model reads are cut there", url)

    def _line(self, message: object) -> str:
        text = str(message)
        return short_line(text.replace(self._key, "***") if self._key else text)


def _sendable(text: str) -> str:
    return text.encode(errors="replace").decode()


def read_vectors(body: bytes, count: int) -> np.ndarray:
    """Read float64 [count, dimension] of a response, in the order of the texts. Raises ValueError for anything else."""
    rows = _by_index(body, count, "data", "embedding")
    try:
        vectors = np.array(rows, np.float64)
    except (TypeError, ValueError):
        raise ValueError("an embedding is no list of numbers, or they differ in length") from None
    if vectors.ndim != 2 or not vectors.shape[1] or not np.isfinite(vectors).all():
        raise ValueError("an embedding is empty, or not finite")
    return vectors


def read_scores(body: bytes, count: int) -> list[float]:
    """Read the scores of a response, in the order of the texts. Raises ValueError for anything else."""
    scores = _by_index(body, count, "results", "relevance_score")
    if not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
        raise ValueError("a relevance_score is no finite number")
    return [float(score) for score in scores]


def _by_index(body: bytes, count: int, key: str, value: str) -> list[Any]:
    answer = read_json(body)
    entries = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(entries, list) or len(entries) != count or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"expected {count} {value}s under {key}")
    rows = {entry.get("index", at): entry.get(value) for at, entry in enumerate(entries)}
    if set(rows) != set(range(count)):
        raise ValueError(f"the indices are not 0 to {count - 1}")
    return [rows[at] for at in range(count)]
