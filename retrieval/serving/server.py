"""python -m retrieval.serving.server: indexes over HTTP, for agents that run elsewhere or share one copy of an index.

    POST /indexes/NAME/search        {query, k, offset, documents?}   -> {digest, passages}
    POST /indexes/NAME/search_batch  {queries, k, offset, documents?} -> {digest, results}
    GET  /indexes, /health, /metrics

Errors are {error: "..."}. Searches run on `threads` threads. A batch is searched in slices of about SLICE_SECONDS and
at most `threads` slices, of all batches together, are with the threads at any time, each batch taking its turn after
every slice: so a single query waits for the slices that are running and for no batch to end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import inspect
import ipaddress
import logging
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException as HttpError

from ratchet.command import run_command
from ratchet.config import load_config, parse
from ratchet.errors import UserError, did_you_mean
from ratchet.records import Passage
from retrieval.serving.admission import Gate, Metrics, json_response, refusal
from retrieval.serving.protocol import (
    BatchAnswer,
    BatchRequest,
    IndexesAnswer,
    Limits,
    SearchAnswer,
    SearchRequest,
    ServedIndex,
)
from retrieval.sparse.engine import usable_cores

if TYPE_CHECKING:
    from retrieval.index import Retriever

SLICE_SECONDS = 0.05
"""About so long a thread searches for a batch before anything else gets its turn: slices shrink and grow to it."""
FIRST_SLICE = 8

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Served:
    """An index and what it can do."""

    name: str
    index: Retriever
    takes_documents: bool
    chunks: int | None

    @classmethod
    def of(cls, name: str, index: Retriever) -> Served:
        chunks = len(index) if isinstance(index, Sized) else None
        return cls(name, index, "documents" in inspect.signature(index.search).parameters, chunks)

    def told(self) -> ServedIndex:
        digest, takes = self.index.digest, self.takes_documents
        return ServedIndex(name=self.name, digest=digest, chunks=self.chunks, takes_documents=takes)


class Threads:
    """Runs searches on threads; see the module's docstring for whose turn it is."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count, "search")
        self._turns = asyncio.Semaphore(count)

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def run_slices(
        self, count: int, call: Callable[[int, int], None], unwanted: Callable[[], Awaitable[bool]]
    ) -> None:
        """call(first, last) until 0 .. count are done, or one failed or the client has gone."""
        done = 0

        async def work() -> None:
            nonlocal done
            size = FIRST_SLICE
            while done < count and not await unwanted():
                async with self._turns:
                    if done == count:
                        return
                    first, done = done, min(done + size, count)
                    began = time.perf_counter()
                    await self.run(partial(call, first, done))
                    spent = time.perf_counter() - began
                size = max(1, size // 2) if spent > SLICE_SECONDS else size * 2 if spent < SLICE_SECONDS / 4 else size

        try:
            await asyncio.gather(*(work() for _ in range(self._count)))
        finally:
            done = count  # what failed in one of them ends the others

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def create_app(indexes: Mapping[str, Retriever], limits: Limits, threads: int = 1) -> FastAPI:
    """The server's app over indexes by name. Every index must bear searches from several threads at once."""
    served = {name: Served.of(name, index) for name, index in indexes.items()}
    metrics, pool = Metrics(), Threads(threads)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        pool.close()

    # Without FastAPI's pages: they fetch scripts from elsewhere. /openapi.json is there.
    app = FastAPI(title="Ratchet retrieval", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(Gate, limits=limits, metrics=metrics, names=frozenset(served))

    @app.exception_handler(HttpError)
    async def refused(_: Request, error: HttpError) -> Response:
        return refusal(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        problems = [f"{'.'.join(map(str, p['loc'][1:])) or 'body'}: {p['msg']}" for p in error.errors()[:5]]
        return refusal(422, "; ".join(problems))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        return refusal(500, "the server failed; its log says why")

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"ready": True, "version": version("ratchet")}

    @app.get("/indexes")
    async def list_indexes() -> IndexesAnswer:
        return IndexesAnswer(indexes=[one.told() for one in served.values()], limits=limits)

    @app.get("/metrics")
    async def metrics_text() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.post("/indexes/{name}/search", response_model=SearchAnswer)
    async def search(name: str, body: SearchRequest) -> Response:
        one = _checked(served, name, body, [body.query], limits)

        def answer() -> Response:
            passages = one.index.search(body.query, body.k, body.offset, **_filter(body))
            return json_response(SearchAnswer(digest=one.index.digest, passages=passages))

        async with _guarded(one, limits, body):
            response = await pool.run(answer)
        metrics.queries.labels(name).inc()
        return response

    @app.post("/indexes/{name}/search_batch", response_model=BatchAnswer)
    async def search_batch(name: str, body: BatchRequest, request: Request) -> Response:
        one = _checked(served, name, body, body.queries, limits)
        results: list[list[Passage]] = [[] for _ in body.queries]

        def search_slice(first: int, last: int) -> None:
            found = one.index.search_batch(body.queries[first:last], body.k, body.offset, **_filter(body))
            results[first:last] = found

        async with _guarded(one, limits, body):
            await pool.run_slices(len(results), search_slice, request.is_disconnected)
            metrics.queries.labels(name).inc(len(results))
            return await pool.run(lambda: json_response(BatchAnswer(digest=one.index.digest, results=results)))

    return app


def _checked(
    served: Mapping[str, Served], name: str, body: SearchRequest | BatchRequest, queries: list[str], limits: Limits
) -> Served:
    """The index of that name, if the request keeps all limits; HTTPException where not."""
    if name not in served:
        raise HTTPException(404, f"no index {name!r}{did_you_mean(name, served)}")
    longest = max(map(len, queries), default=0)
    for problem, said in (
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
            body.documents is not None and not served[name].takes_documents,
            f"the index {name!r} cannot be searched by documents; leave that key out",
        ),
    ):
        if problem:
            raise HTTPException(422, said)
    return served[name]


def _filter(body: SearchRequest | BatchRequest) -> dict[str, Any]:
    return {} if body.documents is None else {"documents": body.documents}


@contextlib.asynccontextmanager
async def _guarded(one: Served, limits: Limits, body: SearchRequest | BatchRequest) -> AsyncIterator[None]:
    """A search's time limit, and what its index has to say told to the client. A search that runs is not broken off."""
    try:
        async with asyncio.timeout(limits.seconds):
            yield
    except TimeoutError:
        raise HTTPException(504, f"no result within {limits.seconds} s, which is the limit (--seconds)") from None
    except UserError as error:
        logger.error("%s: %s", one.name, error)
        # Of a search that is otherwise well: some engines cannot leave out documents, and say so only then.
        status = 500 if body.documents is None else 422
        raise HTTPException(status, f"the index {one.name!r}: {error}") from None


# The command


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m retrieval.serving.server", description="Serve indexes over HTTP.")
    parser.add_argument("--config", help="serve the index of this experiment, by the name of its folder")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--index", action="append", default=[], metavar="NAME=FOLDER", help="an index (repeatable)")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine alone")
    parser.add_argument("--port", type=int, default=8088, help="default: 8088; 0: any free one")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="default: one for each core")
    for name, field in Limits.model_fields.items():
        default = "none" if field.default is None else field.default
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"most {field.description} (default: {default})")
    arguments = parser.parse_args()
    given = {name: getattr(arguments, name) for name in Limits.model_fields if getattr(arguments, name) is not None}
    limits = parse(Limits, given, "limits")
    if arguments.threads < 1:
        raise UserError("--threads must be at least 1")
    indexes = _open_indexes(arguments)
    with listen(arguments.host, arguments.port) as listener:
        if not _is_loopback(arguments.host):
            logger.warning("%s: the server has no authentication; all who reach it can search", arguments.host)
        _announce(listener, indexes)
        app = create_app(indexes, limits, arguments.threads)
        # Without its own logging: lines go where ours go, and no line is written for every request.
        settings = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=30,
        )
        uvicorn.Server(settings).run([listener])


def _open_indexes(arguments: argparse.Namespace) -> dict[str, Retriever]:
    from retrieval.opening import open_folder, open_index

    if bool(arguments.config) == bool(arguments.index):
        raise UserError("say what to serve: either --config X.yaml or --index NAME=FOLDER (repeatable)")
    if arguments.config:
        config = load_config(arguments.config, arguments.overrides)
        return {Path(config.index.path).name or config.index.kind: open_index(config.index)}
    indexes: dict[str, Retriever] = {}
    for given in arguments.index:
        name, _, folder = given.partition("=")
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII) or not folder:
            raise UserError(f"--index {given}: expected NAME=FOLDER, the name of letters, digits, '_', '.' and '-'")
        if name in indexes:
            raise UserError(f"--index {given}: there is already an index {name!r}; give every index its own name")
        indexes[name] = open_folder(Path(folder))
    return indexes


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; what stands against it is a UserError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
        # Connections inherit it. asyncio sets it only on sockets of its own making, and without it every answer waits
        # 40 ms for the client's acknowledgement of its headers.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} of {host} is in use; stop what uses it, or choose another --port") from error
        raise UserError(f"cannot listen on --host {host} --port {port} ({error.strerror or error})") from error
    except OverflowError as error:
        raise UserError(f"--port {port}: a port is a number from 0 to 65535") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _announce(listener: socket.socket, indexes: Mapping[str, Retriever]) -> None:
    host, port = listener.getsockname()[:2]
    names = ", ".join(f"{name} ({index.digest[:12]})" for name, index in indexes.items())
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    print(f"serving {names} on http://{where}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_command(main)
