"""The search server's app: indexes by name over HTTP, searched on a few threads.

    POST /indexes/NAME/search        {query, k, offset}   -> {digest, passages}
    POST /indexes/NAME/search_batch  {queries, k, offset} -> {digest, results}
    GET  /indexes, /health

Errors are {error: "..."}. Searches, of one query or of a batch, run on `threads` threads, in the order in which they
came.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel

from ratchet.errors import UserError, did_you_mean
from ratchet.http.app import add_health, open_app
from ratchet.http.openai import plain_error_response
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

logger = logging.getLogger(__name__)


def create_app(indexes: Mapping[str, Retriever], limits: Limits, threads: int = 1, key: str | None = None) -> FastAPI:
    """The server's app over indexes by name. Every index must allow searches from several threads at once.

    `key`: what clients must send.
    """
    pool = ThreadPoolExecutor(threads, "search")

    @contextlib.asynccontextmanager
    async def open_pool() -> AsyncIterator[None]:
        yield
        pool.shutdown(wait=False, cancel_futures=True)

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
            return await asyncio.get_running_loop().run_in_executor(pool, answer)

    @app.post("/indexes/{name}/search_batch", response_model=BatchAnswer)
    async def search_batch(name: str, body: BatchRequest) -> Response:
        index = _checked(indexes, name, body, body.queries, limits)

        def answer() -> Response:
            results = index.search_batch(body.queries, body.k, body.offset)
            return _json_response(BatchAnswer(digest=index.digest, results=results))

        async with _guarded(name, limits):
            return await asyncio.get_running_loop().run_in_executor(pool, answer)

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
