"""Milvus for dense or learned sparse vectors: Milvus Lite on a file of this disk, or a cluster at an address.

A collection has one row per chunk: its number as the key, and its vector. The collection's name ends in a digest of
what the vectors are and how they are indexed, so that vectors of another model or other documents are never searched by
mistake. While it is filled it ends in `_building`, and it is renamed when it is complete, so that a half-filled one is
never searched either.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.core.errors import UserError
from ratchet.core.installed import install
from ratchet.core.records import content_key
from ratchet.core.text import short_line
from ratchet.retrieval.encoders.vectors import SparseVectors
from ratchet.retrieval.index import Ranking

Vectors = np.ndarray | SparseVectors
"""float32 [n, dimension], or sparse rows."""
# Rows of one request.
BATCH = 500
MAX_RANKS = 16_384  # ranks of one search: a limit of Milvus
MAX_RANKS_PER_REQUEST = 1 << 18  # ranks of one request, over its queries
CONNECT_SECONDS = 20
BUILDING = "_building"
PREFIX = "ratchet_"  # what the collections' names begin with
TOKEN_ENV = "RATCHET_MILVUS_TOKEN"
"""The environment variable that holds the server's token, or user:password; may be unset for an open server."""
TIMEOUT = 600.0
"""Seconds that one request may take, with its repetitions while the server does not answer."""


@dataclass(frozen=True)
class VectorSpace:
    """The vectors that a collection holds."""

    digest: str
    """A digest of the encoder and of the chunks that it encoded."""
    sparse: bool
    dimension: int
    """Length of a dense vector, or size of the vocabulary."""
    chunks: int


def collection_name(space: VectorSpace) -> str:
    """Return the finished collection's name."""
    return f"{PREFIX}{content_key('milvus', asdict(space), None)[:16]}"


def build_milvus(
    uri: str,
    space: VectorSpace,
    vectors: Iterable[Vectors],
    advance: Callable[[int], None] = lambda rows: None,
) -> str:
    """Fill the collection and return its name; a complete collection is left as it is.

    `uri`: a file that ends in .db, for Milvus Lite and one process at a time; else http(s)://host:port of a server.
    `vectors` are those of all chunks in order, in pieces of any length. `advance` gets the rows done.
    """
    name = collection_name(space)
    with _Server(uri) as server:
        if server.has(name):
            return name
        if server.has(name + BUILDING):
            server.call("drop_collection", name + BUILDING)
        server.create(name + BUILDING, space)
        server.call("load_collection", name + BUILDING)
        sent = 0
        for rows in _batches(vectors, space):
            server.call("upsert", name + BUILDING, rows)
            sent += len(rows)
            advance(len(rows))
        stored = server.count(name + BUILDING)
        if (sent, stored) != (space.chunks, space.chunks):
            raise UserError(
                f"{uri}: the collection {name + BUILDING} has {stored} rows after {sent} of {space.chunks} chunks "
                "were sent; is another process writing to it? Drop it and build again"
            )
        server.call("flush", name + BUILDING)
        server.call("rename_collection", name + BUILDING, name)
    return name


def drop_milvus(uri: str, space: VectorSpace) -> None:
    """Delete the collection, finished or not."""
    name = collection_name(space)
    with _Server(uri) as server:
        for collection in (name, name + BUILDING):
            if server.has(collection):
                server.call("drop_collection", collection)


class MilvusRanker:
    """Chunks ranked by Milvus; threads may call it at once.

    Scores are Milvus's, in float32; dense ones may differ in the last bit with the queries that are asked beside. Equal
    scores come in ascending chunk number among the chunks that Milvus returns; which of several equal ones at the last
    rank it returns is up to Milvus. A sparse query meets only chunks that share a term with it.
    """

    def __init__(self, uri: str, space: VectorSpace, encode_queries: Callable[[Sequence[str]], Vectors]) -> None:
        """Raise UserError for a collection that is missing, half-filled or not of `space`."""
        self._uri, self._space, self._encode = uri, space, encode_queries
        self._name = collection_name(space)
        self._server = _Server(uri)
        try:
            self._open()
        except BaseException:
            self._server.close()
            raise

    def _open(self) -> None:
        server, where = self._server, f"{self._uri}: the Milvus collection {self._name}"
        if not server.has(self._name):
            if server.has(self._name + BUILDING):
                raise UserError(f"{where} is half-filled; run `ratchet index` again")
            others = [name for name in server.call("list_collections") if name.startswith(PREFIX)]
            hint = f"; {', '.join(others)}: of another model, other documents or settings" if others else ""
            raise UserError(f"{where} is not there; build it with `ratchet index --config ...`{hint}")
        server.call("load_collection", self._name)
        # A count waits until all that was written can be read, so that searches need not wait again.
        stored = server.count(self._name)
        if stored != self._space.chunks:
            raise UserError(f"{where} has {stored} of {self._space.chunks} chunks; drop it and build it again")

    def __len__(self) -> int:
        return self._space.chunks

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        if k < 0:
            raise ValueError(f"k must not be negative, got {k}")
        if k > MAX_RANKS:
            raise UserError(
                f"Milvus returns at most {MAX_RANKS} ranks of a query, and {k} were asked for; ask for fewer"
            )
        rankings = [Ranking.empty() for _ in queries]
        k = min(k, len(self))
        if k == 0 or not queries:
            return rankings
        vectors = list(_rows(self._encode(queries), self._space, documents=False))
        asked = [i for i, vector in enumerate(vectors) if len(vector)]  # a query without terms matches nothing
        group = max(1, MAX_RANKS_PER_REQUEST // k)
        for first in range(0, len(asked), group):
            places = asked[first : first + group]
            for i, hits in zip(places, self._search([vectors[i] for i in places], k), strict=True):
                rankings[i] = _ranking(hits)
        return rankings

    def _search(self, vectors: list[Any], k: int) -> list[list[dict[str, Any]]]:
        hits: list[list[dict[str, Any]]] = self._server.call(
            "search",
            self._name,
            data=vectors,
            anns_field="vector",
            limit=k,
            output_fields=["id"],
            search_params={"metric_type": "IP", "params": {}},
            consistency_level="Eventually",
        )
        return hits

    def close(self) -> None:
        self._server.close()


def _ranking(hits: list[dict[str, Any]]) -> Ranking:
    scores = np.array([hit["distance"] for hit in hits], np.float64)
    chunks = np.array([hit["id"] for hit in hits], np.int64)
    order = np.lexsort((chunks, -scores))
    return Ranking(scores[order], chunks[order])


def _batches(pieces: Iterable[Vectors], space: VectorSpace) -> Iterator[list[dict[str, Any]]]:
    vectors = (vector for piece in pieces for vector in _rows(piece, space, documents=True))
    rows = ({"id": number, "vector": vector} for number, vector in enumerate(vectors))
    while batch := list(islice(rows, BATCH)):
        yield batch


def _rows(vectors: Vectors, space: VectorSpace, documents: bool) -> Iterator[Any]:
    """Yield every row as the client takes it: a float32 array, or a dict of weights.

    Milvus refuses a sparse vector without weights. A document without terms gets one in a dimension past the
    vocabulary, which no query has.
    """
    if isinstance(vectors, SparseVectors) != space.sparse:
        raise TypeError(f"expected {'sparse' if space.sparse else 'dense'} vectors, got a {type(vectors).__name__}")
    if isinstance(vectors, SparseVectors):
        if len(vectors.terms) and vectors.terms.max() >= space.dimension:
            raise _other_model(space, f"term {vectors.terms.max()}")
        terms, weights = vectors.terms.tolist(), vectors.weights().tolist()
        for start, end in pairwise(vectors.offsets.tolist()):
            row = {term: weight for term, weight in zip(terms[start:end], weights[start:end], strict=True) if weight}
            yield row or ({space.dimension: 1.0} if documents else {})
    else:
        if vectors.ndim != 2 or vectors.shape[1] != space.dimension:
            raise _other_model(space, f"vectors of shape {vectors.shape}")
        yield from np.ascontiguousarray(vectors, np.float32)


def _other_model(space: VectorSpace, got: str) -> UserError:
    return UserError(
        f"the collection has vectors of {space.dimension} dimensions, and the model gives {got}: it is not the model "
        "that the index was built with; set that one, or build the index again"
    )


class _Server:
    """The client, with its errors as UserErrors. Milvus Lite runs in threads of this process and ends with it."""

    def __init__(self, uri: str) -> None:
        try:
            import grpc
            import pymilvus
        except ImportError as error:
            raise UserError(f"Milvus needs its client: {install('milvus')}") from error
        self._pymilvus = pymilvus
        self._errors = (pymilvus.MilvusException, grpc.RpcError)
        self._uri = uri
        for name in ("pymilvus", "milvus_lite"):  # they log a traceback of every error that they raise
            logging.getLogger(name).setLevel(logging.CRITICAL)
        lite = uri.endswith(".db")
        if not lite and not uri.startswith(("http://", "https://")):
            raise UserError(f"milvus.uri: {uri!r} is neither a file that ends in .db nor an http(s) address")
        if lite:
            try:
                Path(uri).absolute().parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{uri}: cannot make its folder ({error.strerror})") from error
        try:
            token = os.environ.get(TOKEN_ENV, "")
            self._client = pymilvus.MilvusClient(uri, token=token, timeout=CONNECT_SECONDS)
        except Exception as error:  # gRPC and the client have many classes of errors
            if lite:
                raise UserError(
                    f"{uri}: Milvus Lite cannot open it ({_message(error)}). Is it open in another process? Use "
                    f"a Milvus server where several need it. Without milvus-lite: {install('milvus')}"
                ) from error
            raise UserError(
                f"{uri}: no Milvus server answers ({_message(error)}); check the address, and the token in {TOKEN_ENV}"
            ) from error

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        try:
            return getattr(self._client, method)(*arguments, timeout=TIMEOUT, **keywords)
        except self._errors as error:
            raise UserError(f"{self._uri}: Milvus failed in {method}: {_message(error)}") from error

    def has(self, name: str) -> bool:
        return bool(self.call("has_collection", name))

    def count(self, name: str) -> int:
        rows = self.call("query", name, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(rows[0]["count(*)"])

    def create(self, name: str, space: VectorSpace) -> None:
        kinds = self._pymilvus.DataType
        schema = self._pymilvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        index = self._client.prepare_index_params()
        if space.sparse:
            schema.add_field("vector", kinds.SPARSE_FLOAT_VECTOR)
            index.add_index("vector", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
        else:
            schema.add_field("vector", kinds.FLOAT_VECTOR, dim=space.dimension)
            index.add_index("vector", index_type="FLAT", metric_type="IP")
        self.call("create_collection", name, schema=schema, index_params=index)


def _message(error: Exception) -> str:
    return short_line(str(getattr(error, "message", "") or str(error) or repr(error)))
