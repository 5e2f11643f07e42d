"""The config's embedder: a function from texts to vectors of length 1, by a model of this process or by a server.

A server is any that answers POST {url}/embeddings as OpenAI's does: {"model", "input": [texts]} gives {"data":
[{"index", "embedding": [numbers]}]}. Its vectors are scaled to length 1 here, since not every server does so. What is
transient is asked again (core/http/retry.py); a server that gives no usable answer is a SourceError, so the
trajectory fails, or the score stays unfinished, and is made again later.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

from ratchet.core.config import EmbedderConfig
from ratchet.core.errors import UserError
from ratchet.core.http.clients import check_client_environment, is_local, open_client
from ratchet.core.http.responses import Answer, BadResponse, send_request_sync
from ratchet.core.http.retry import TRANSIENT, Backoff, TryAgain, read_retry_after, retry
from ratchet.core.text import read_json, short_line
from ratchet.retrieval.encoders.dense import shared_encoder
from ratchet.retrieval.encoders.limits import Embed
from ratchet.retrieval.retriever import SourceError

MAX_BYTES = 64 << 20
"""Of one response: 64 vectors of 4,096 numbers, as text, are about 6 MB."""
BACKOFF = Backoff(tries=5)
BATCH = 64
"""Texts of one request."""
TIMEOUT = 60.0
"""Seconds of one attempt."""


def open_embedder(config: EmbedderConfig) -> Embed:
    """Return the function that embeds texts, float32 [n, dimension], rows of length 1. Threads may call it at once.

    A local model is loaded by the first call, once in a process; one that cannot be used is a UserError then. A server
    that gives no answer is a SourceError, and one that refuses the key a UserError.
    """
    if config.engine == "openai":
        return RemoteEmbedder(config)
    return LocalEmbedder(config)


class LocalEmbedder:
    """Embeds texts by a model of this process."""

    def __init__(self, config: EmbedderConfig) -> None:
        self._config = config

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return shared_encoder(self._config).encode_queries(texts)

    def end_of(self, text: str) -> tuple[str, int]:
        return shared_encoder(self._config).query_limit.end_of(text)


class RemoteEmbedder:
    """Embeds texts by a server."""

    def __init__(self, config: EmbedderConfig) -> None:
        """Raises UserError where the environment's proxies or certificates cannot be used."""
        self._config = config
        self._url = f"{(config.url or '').rstrip('/')}/embeddings"
        self._key = os.environ.get(config.api_key_env, "").strip()
        if not is_local(self._url):
            check_client_environment()  # clients are opened later

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        # Servers refuse an empty text, and a lone surrogate has no UTF-8.
        clean = [text.encode(errors="replace").decode() or " " for text in texts]
        parts = [self._embed(clean[at : at + BATCH]) for at in range(0, len(clean), BATCH)]
        if not parts:
            return np.empty((0, 0), np.float32)
        if len({part.shape[1] for part in parts}) > 1:
            raise SourceError(f"{self._url}: vectors of different lengths in one answer")
        vectors = np.concatenate(parts)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)

    def _embed(self, texts: Sequence[str]) -> np.ndarray:
        body = {"model": self._config.path, "input": list(texts), "encoding_format": "float"}
        try:
            return read_vectors(self._post(body).body, len(texts))
        except ValueError as error:
            raise SourceError(f"{self._url} did not answer with vectors ({self._line(error)}); is url right?") from None

    def _post(self, body: dict[str, Any]) -> Answer:
        with open_client(self._key, trust_env=not is_local(self._url), timeout=TIMEOUT) as client:
            try:
                return retry(lambda: self._attempt(client, body), BACKOFF)
            except TryAgain as fault:
                raise SourceError(str(fault)) from fault

    def _attempt(self, client: httpx.Client, body: dict[str, Any]) -> Answer:
        try:
            answer = send_request_sync(client, client.build_request("POST", self._url, json=body), MAX_BYTES)
        except (httpx.TransportError, BadResponse) as error:
            raise TryAgain(f"{self._url}: no answer ({self._line(error) or type(error).__name__})") from error
        if answer.is_success and not answer.busy:
            return answer
        said = self._line(answer.busy or answer.text)
        problem = f"{self._url} answered {answer.status}: {said or '(nothing)'}"
        if answer.status in (401, 403):
            raise UserError(f"{problem}; the key is read from the variable {self._config.api_key_env}")
        if not answer.busy and answer.status not in TRANSIENT:
            raise SourceError(f"{problem}; the request itself is refused (embedder.path, embedder.url)")
        raise TryAgain(problem, read_retry_after(answer.headers))

    def _line(self, message: object) -> str:
        """The message in a short line, without the key."""
        text = str(message)
        return short_line(text.replace(self._key, "***") if self._key else text)


def read_vectors(body: bytes, count: int) -> np.ndarray:
    """float64 [count, dimension] of a response, in the order of the texts. Raises ValueError for anything else."""
    answer = read_json(body)
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or len(data) != count or not all(isinstance(entry, dict) for entry in data):
        raise ValueError(f"expected {count} vectors under data")
    rows = {entry.get("index", at): entry.get("embedding") for at, entry in enumerate(data)}
    if set(rows) != set(range(count)):
        raise ValueError(f"the indices are not 0 to {count - 1}")
    try:
        vectors = np.array([rows[at] for at in range(count)], np.float64)
    except (TypeError, ValueError):
        raise ValueError("an embedding is no list of numbers, or they differ in length") from None
    if vectors.ndim != 2 or not vectors.shape[1] or not np.isfinite(vectors).all():
        raise ValueError("an embedding is empty, or not finite")
    return vectors
