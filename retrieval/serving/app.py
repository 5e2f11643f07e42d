"""The search server's app: indexes by name over HTTP, searched on a few threads.

    POST /indexes/NAME/search        {query, k, offset}   -> {digest, passages}
    POST /indexes/NAME/search_batch  {queries, k, offset} -> {digest, results}
    GET  /indexes, /health

Errors are {error: "..."}. Searches run on `threads` threads. A batch is searched in slices of about SLICE_SECONDS and
at most `threads` slices, of all batches together, are with the threads at any time, each batch taking its turn after
every slice: so a single query waits for the slices that are running and for no batch to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
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

if TYPE_CHECKING:
    from retrieval.index import Retriever

SLICE_SECONDS = 0.05
"""About so long a thread searches for a batch before anything else gets its turn: slices shrink and grow to it."""
FIRST_SLICE = 8

logger = logging.getLogger(__name__)
T = TypeVar("T")


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
    pool = Threads(threads)

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
    add_health(app)

    @app.get("/indexes")
    async def list_indexes() -> IndexesAnswer:
        served = [
            ServedIndex(name=name, digest=index.digest, chunks=len(index) if isinstance(index, Sized) else None)
            for name, index in indexes.items()
        ]
        return IndexesAnswer(indexes=served, limits=limits)

    @app.post("/indexes/{name}/search", response_model=SearchAnswer)
    async def search(name: str, body: SearchRequest) -> Response:
        index = _checked(indexes, name, body, [body.query], limits)

        def answer() -> Response:
            passages = index.search(body.query, body.k, body.offset)
            return _json_response(SearchAnswer(digest=index.digest, passages=passages))

        async with _guarded(name, limits):
            return await pool.run(answer)

    @app.post("/indexes/{name}/search_batch", response_model=BatchAnswer)
    async def search_batch(name: str, body: BatchRequest, request: Request) -> Response:
        index = _checked(indexes, name, body, body.queries, limits)
        results: list[list[Passage]] = [[] for _ in body.queries]

        def search_slice(first: int, last: int) -> None:
            results[first:last] = index.search_batch(body.queries[first:last], body.k, body.offset)

        async with _guarded(name, limits):
            await pool.run_slices(len(results), search_slice, request.is_disconnected)
            return await pool.run(lambda: _json_response(BatchAnswer(digest=index.digest, results=results)))

    return app


def _json_response(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def _checked(
    served: Mapping[str, Retriever], name: str, body: SearchRequest | BatchRequest, queries: list[str], limits: Limits
) -> Retriever:
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
    ):
        if problem:
            raise HTTPException(422, message)
    return served[name]


@contextlib.asynccontextmanager
async def _guarded(name: str, limits: Limits) -> AsyncIterator[None]:
    """Limit a search's time, and report its index's error to the client. A running search is not interrupted."""
    try:
        async with asyncio.timeout(limits.seconds):
            yield
    except TimeoutError:
        raise HTTPException(504, f"no result within {limits.seconds} s, which is the limit (--seconds)") from None
    except UserError as error:
        logger.error("%s: %s", name, error)
        raise HTTPException(500, f"the index {name!r}: {error}") from None
