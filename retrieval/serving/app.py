"""The search server's app: indexes by name over HTTP, searched on a few threads.

    POST /indexes/NAME/search        {query, k, offset, documents?}   -> {digest, passages}
    POST /indexes/NAME/search_batch  {queries, k, offset, documents?} -> {digest, results}
    GET  /indexes, /health, /metrics

Errors are {error: "..."}. Searches run on `threads` threads. A batch is searched in slices of about SLICE_SECONDS and
at most `threads` slices, of all batches together, are with the threads at any time, each batch taking its turn after
every slice: so a single query waits for the slices that are running and for no batch to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from ratchet.errors import UserError, did_you_mean
from ratchet.http.app import add_health, open_app
from ratchet.http.openai import plain_error_response
from ratchet.records import Passage
from retrieval.protocol import (
    BatchAnswer,
    BatchRequest,
    IndexesAnswer,
    Limits,
    SearchAnswer,
    SearchRequest,
    ServedIndex,
)
from retrieval.serving.metrics import Metrics, MetricsMiddleware

if TYPE_CHECKING:
    from retrieval.index import Retriever

SLICE_SECONDS = 0.05
"""About so long a thread searches for a batch before anything else gets its turn: slices shrink and grow to it."""
FIRST_SLICE = 8

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class IndexEntry:
    """An index and its capabilities."""

    index: Retriever
    about: ServedIndex

    @classmethod
    def of(cls, name: str, index: Retriever) -> IndexEntry:
        chunks = len(index) if isinstance(index, Sized) else None
        takes = "documents" in inspect.signature(index.search).parameters
        return cls(index, ServedIndex(name=name, digest=index.digest, chunks=chunks, takes_documents=takes))


class Threads:
    """Runs searches on threads; see the module's docstring for whose turn it is."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count, "search")
        self._turns = asyncio.Semaphore(count)

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def run_slices(
        self, count: int, call: Callable[[int, int], None], is_cancelled: Callable[[], Awaitable[bool]]
    ) -> None:
        """call(first, last) until 0 .. count are done, or one failed or the client has gone."""
        done = 0

        async def work() -> None:
            nonlocal done
            size = FIRST_SLICE
            while done < count and not await is_cancelled():
                async with self._turns:
                    if done == count:
                        return
                    first, done = done, min(done + size, count)
                    started = time.perf_counter()
                    await self.run(partial(call, first, done))
                    spent = time.perf_counter() - started
                size = max(1, size // 2) if spent > SLICE_SECONDS else size * 2 if spent < SLICE_SECONDS / 4 else size

        try:
            await asyncio.gather(*(work() for _ in range(self._count)))
        finally:
            done = count  # what failed in one of them ends the others

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def create_app(indexes: Mapping[str, Retriever], limits: Limits, threads: int = 1, key: str | None = None) -> FastAPI:
    """The server's app over indexes by name. Every index must allow searches from several threads at once.

    `key`: what clients must send.
    """
    served = {name: IndexEntry.of(name, index) for name, index in indexes.items()}
    metrics, pool = Metrics(), Threads(threads)

    @contextlib.asynccontextmanager
    async def open_pool() -> AsyncIterator[None]:
        yield
        pool.close()

    app = open_app(
        "Ratchet retrieval",
        key=key,
        max_body_bytes=limits.body_bytes,
        max_requests=limits.concurrent,
        public=("/health",),
        respond=plain_error_response,
        around=open_pool,
    )
    app.add_middleware(MetricsMiddleware, metrics=metrics, names=frozenset(served))
    add_health(app)

    @app.get("/indexes")
    async def list_indexes() -> IndexesAnswer:
        return IndexesAnswer(indexes=[entry.about for entry in served.values()], limits=limits)

    @app.get("/metrics")
    async def metrics_text() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.post("/indexes/{name}/search", response_model=SearchAnswer)
    async def search(name: str, body: SearchRequest) -> Response:
        entry = _checked(served, name, body, [body.query], limits)

        def answer() -> Response:
            passages = entry.index.search(body.query, body.k, body.offset, **_filter(body))
            return _json_response(SearchAnswer(digest=entry.index.digest, passages=passages))

        async with _guarded(entry, limits, body):
            response = await pool.run(answer)
        metrics.queries.labels(name).inc()
        return response

    @app.post("/indexes/{name}/search_batch", response_model=BatchAnswer)
    async def search_batch(name: str, body: BatchRequest, request: Request) -> Response:
        entry = _checked(served, name, body, body.queries, limits)
        results: list[list[Passage]] = [[] for _ in body.queries]

        def search_slice(first: int, last: int) -> None:
            results[first:last] = entry.index.search_batch(
                body.queries[first:last], body.k, body.offset, **_filter(body)
            )

        async with _guarded(entry, limits, body):
            await pool.run_slices(len(results), search_slice, request.is_disconnected)
            metrics.queries.labels(name).inc(len(results))
            return await pool.run(lambda: _json_response(BatchAnswer(digest=entry.index.digest, results=results)))

    return app


def _json_response(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def _checked(
    served: Mapping[str, IndexEntry], name: str, body: SearchRequest | BatchRequest, queries: list[str], limits: Limits
) -> IndexEntry:
    """The index of that name, if the request keeps all limits; HTTPException where not."""
    if name not in served:
        raise HTTPException(404, f"no index {name!r}{did_you_mean(name, served)}")
    longest = max(map(len, queries), default=0)
    for problem, message in (
        (body.k + body.offset > limits.depth, f"k + offset is {body.k + body.offset}, the limit is {limits.depth}"),
        (len(queries) > limits.batch, f"{len(queries)} queries in a batch, the limit is {limits.batch}"),
        (
            len(queries) > 1 and len(queries) * body.k > limits.batch_passages,
            f"{len(queries)} queries with k = {body.k} may give {len(queries) * body.k} passages, the limit is "
            f"{limits.batch_passages}",
        ),
        (
            longest > limits.query_characters,
            f"a query has {longest} characters, the limit is {limits.query_characters}",
        ),
        (
            body.documents is not None and not served[name].about.takes_documents,
            f"the index {name!r} cannot be searched by documents; leave that key out",
        ),
    ):
        if problem:
            raise HTTPException(422, message)
    return served[name]


def _filter(body: SearchRequest | BatchRequest) -> dict[str, Any]:
    return {} if body.documents is None else {"documents": body.documents}


@contextlib.asynccontextmanager
async def _guarded(entry: IndexEntry, limits: Limits, body: SearchRequest | BatchRequest) -> AsyncIterator[None]:
    """Limit a search's time, and report its index's error to the client. A running search is not interrupted."""
    try:
        async with asyncio.timeout(limits.seconds):
            yield
    except TimeoutError:
        raise HTTPException(504, f"no result within {limits.seconds} s, which is the limit (--seconds)") from None
    except UserError as error:
        logger.error("%s: %s", entry.about.name, error)
        # Of a search that is otherwise well: some engines cannot leave out documents, and say so only then.
        status = 500 if body.documents is None else 422
        raise HTTPException(status, f"the index {entry.about.name!r}: {error}") from None
