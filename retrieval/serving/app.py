"""The search server's app: indexes by name over HTTP, searched on a few threads.

    POST /indexes/NAME/search  {query, k, offset} -> {digest, passages}
    GET  /indexes, /health

Errors are {error: "..."}. Searches run on `threads` threads, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from fastapi import FastAPI, HTTPException, Response

from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.http.app import add_health, open_app
from ratchet.core.http.openai import plain_error_response
from ratchet.retrieval.backends.remote import (
    IndexesAnswer,
    SearchAnswer,
    SearchRequest,
    ServedIndex,
)
from ratchet.retrieval.serving import Limits

if TYPE_CHECKING:
    from ratchet.retrieval.retriever import Retriever

logger = logging.getLogger(__name__)


def create_app(indexes: Mapping[str, Retriever], limits: Limits, threads: int = 1, key: str | None = None) -> FastAPI:
    """Make the server's app over indexes by name. Every index must allow searches from several threads at once."""
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
        return IndexesAnswer(indexes=served)

    @app.post("/indexes/{name}/search", response_model=SearchAnswer)
    async def search(name: str, body: SearchRequest) -> Response:
        index = _checked(indexes, name, body, limits)

        def respond() -> Response:
            passages = index.search(body.query, body.k, body.offset)
            answer = SearchAnswer(digest=index.digest, passages=passages)
            return Response(answer.model_dump_json(), media_type="application/json")

        async with _guarded(name, limits):
            return await asyncio.get_running_loop().run_in_executor(pool, respond)

    return app


def _checked(served: Mapping[str, Retriever], name: str, body: SearchRequest, limits: Limits) -> Retriever:
    if name not in served:
        raise HTTPException(404, f"no index {name!r}{did_you_mean(name, served)}")
    depth, length = body.k + body.offset, len(body.query)
    if depth > limits.depth:
        raise HTTPException(422, f"k + offset is {depth}, the limit is {limits.depth}")
    if length > limits.query_characters:
        raise HTTPException(422, f"a query has {length} characters, the limit is {limits.query_characters}")
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
