"""Runs and relevance judgements in TREC's formats: the run of a set of queries is written, and both are read.

A run has a line `query Q0 document rank score tag` for each document that was found; MS MARCO's have `query document
rank`. Judgements (qrels) have `query 0 document relevance`; BEIR's (Thakur et al. 2021, arXiv 2104.08663) are a TSV
with a header and the columns query, document and relevance. Fields are separated by blanks or tabs, so a blank inside
an id is written as %20, here and where it is read.

trec_eval ignores ranks: it sorts by score, as a 32-bit float, and equal scores by document id, descending. A run is
ranked so when it is written and when it is read, and every program finds the same order in it.
"""

from __future__ import annotations

import gzip
import math
import mmap
import os
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import numpy as np

from ratchet.core.errors import UserError
from ratchet.core.file_kinds import HEAD, not_utf8, refuse_other_kind
from ratchet.core.files import open_regular
from ratchet.core.locks import Lock, disk_error
from ratchet.core.progress import Progress
from ratchet.core.records import content_key, document_id
from ratchet.retrieval.index import Index
from ratchet.retrieval.retriever import Retriever, search_batch

Hit = tuple[float, str]
"""Score and document id. In descending order, hits are in the order of trec_eval."""
TrecRun = dict[str, list[str]]
"""By query, the ids of the documents that were found, best first."""
Qrels = dict[str, dict[str, int]]
"""By query, the relevance of each document that was judged; above 0 is relevant."""
BATCH = 256
"""Queries that are searched at once, and that a killed search loses at most."""
BLANKS = re.compile(r"\s")


def trec_id(text: str) -> str:
    """An id as a run or qrels can hold it: without brackets, in NFC (`records.document_id`), blanks as %20."""
    return BLANKS.sub(lambda blank: quote(blank[0]), document_id(text))


# Searching


def search_documents(retriever: Retriever, queries: Sequence[str], k: int) -> list[list[Hit]]:
    """Return the k best documents for every query, in descending order of (score as a float32, id).

    A document's score is that of its best chunk. An index on this machine gives k documents wherever so many match, and
    the same ones in whatever order the corpus has them: it is searched on until the k-th score is complete. Of any
    other retriever the documents of its first k passages are returned.
    """
    if isinstance(retriever, Index):
        return _search_index(retriever, queries, k)
    return [
        _best({passage.document_id: float(np.float32(passage.score)) for passage in reversed(passages)}, k)
        for passages in search_batch(retriever, queries, k)
    ]


def _search_index(index: Index, queries: Sequence[str], k: int) -> list[list[Hit]]:
    results: list[list[Hit]] = [[] for _ in queries]
    left, depth = list(range(len(queries))), k + k // 8 + 8  # room for chunks of one document and equal scores
    while left:
        deeper = []
        rankings = index.ranker.rank([queries[q] for q in left], depth)
        for q, ranking in zip(left, rankings, strict=True):
            scores = ranking.scores.astype(np.float32).tolist()
            best: dict[str, float] = {}
            for document, score in zip(index.store.document_ids(ranking.chunks), scores, strict=True):
                best.setdefault(document, score)
            is_complete = len(ranking) < depth or (len(best) >= k and scores[-1] < list(best.values())[k - 1])
            if is_complete:
                results[q] = _best(best, k)
            else:
                deeper.append(q)
        left, depth = deeper, 2 * depth
    return results


def _best(scores: dict[str, float], k: int) -> list[Hit]:
    """`scores` are float32 numbers."""
    names = [*map(trec_id, scores)] if BLANKS.search("".join(scores)) else scores
    return sorted(zip(scores.values(), names, strict=True), reverse=True)[:k]


# Writing


@dataclass(frozen=True)
class WrittenRun:
    """What a search wrote."""

    queries: int
    resumed: int
    """Queries among them that an earlier search had written."""
    seconds: float
    """Time that searching and writing the others took, without the first of them, which loads models and kernels."""


def write_run(path: Path, retriever: Retriever, queries: Sequence[tuple[str, str]], k: int) -> WrittenRun:
    """Search (id, text) of every query for k documents, and write the run.

    It is written to PATH.partial, which becomes PATH at the end. Its tag is a key of the retriever, the queries and k:
    a search that was killed is resumed, and one that is complete is not repeated. Raises UserError where PATH has
    another tag.
    """
    tag = f"ratchet-{content_key('run', retriever.digest, [*map(list, queries)], k)[:12]}"
    places = {trec_id(name): place for place, (name, _) in enumerate(queries)}
    if len(places) < len(queries):
        raise UserError(f"{path}: two queries have the same id once blanks are written as %20; rename one")
    if path.suffix == ".gz":
        raise UserError(f"{path}: a run is written as text; leave .gz out, and pack it afterwards")
    partial = path.with_name(f"{path.name}.partial")
    with Lock(path.with_name(f".{path.name}.lock"), f"the run {path}"):
        try:
            if path.exists() and path.stat().st_size:
                if _tag_of(path) == tag:
                    return WrittenRun(len(queries), len(queries), 0.0)
                raise UserError(f"{path}: holds another run; delete it, or write to another file")
            with partial.open("r+b" if partial.exists() and _tag_of(partial) == tag else "w+b") as file:
                last, end = _last_query(file.fileno())
                file.truncate(end)
                file.seek(end)
                done = places.get(last, 0)  # the last query may be written in part: it is searched again
                start = time.monotonic()
                with Progress("searching", len(queries), done) as progress:
                    for at, end in pairwise([done, *range(done + 1, len(queries), BATCH), len(queries)]):
                        if at == done + 1:
                            start = time.monotonic()
                        batch = queries[at:end]
                        found = search_documents(retriever, [text for _, text in batch], k)
                        lines = (_lines(name, hits, tag) for (name, _), hits in zip(batch, found, strict=True))
                        file.write("".join(lines).encode())
                        file.flush()
                        progress.advance(len(batch))
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            raise disk_error(path, error) from error
    return WrittenRun(len(queries), done, time.monotonic() - start)


def _lines(query: str, hits: Sequence[Hit], tag: str) -> str:
    name = trec_id(query)
    # Nine digits tell any two floats of 32 bits apart.
    return "".join(f"{name} Q0 {document} {rank} {score:.9g} {tag}\n" for rank, (score, document) in enumerate(hits, 1))


def _tag_of(path: Path) -> str:
    with path.open("rb") as file:
        return file.readline().decode(errors="replace").rpartition(" ")[2].rstrip("\n")


def _last_query(descriptor: int) -> tuple[str, int]:
    """Return the last query of the complete lines in a run, and where its lines begin; '' and 0 of an empty one."""
    if not os.fstat(descriptor).st_size:
        return "", 0
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
        end = data.rfind(b"\n") + 1
        start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
        name = data[start : data.find(b" ", start)]
        while start and data[(before := data.rfind(b"\n", 0, start - 1) + 1) : start].startswith(name + b" "):
            start = before
        return (name.decode(), start) if end else ("", 0)


# Reading


def read_run(path: Path) -> TrecRun:
    """Read a run, each query's documents in the order of trec_eval. Raises UserError with the file and line."""
    hits: dict[str, dict[str, float]] = {}
    for place, fields in _rows(path):
        if len(fields) not in (3, 6):
            raise UserError(f"{place}: not a line of a run (query Q0 document rank score tag, or query document rank)")
        query, document = fields[0], fields[1 if len(fields) == 3 else 2]
        score = _number(place, fields[2 if len(fields) == 3 else 4])
        found = hits.setdefault(query, {})
        if document in found:
            raise UserError(f"{place}: query {query} has document {document} twice; remove one of the lines")
        found[document] = float(np.float32(-score if len(fields) == 3 else score))
    if not hits:
        raise UserError(f"{path}: has no line of a run")
    return {trec_id(query): [name for _, name in _best(found, len(found))] for query, found in hits.items()}


def read_qrels(path: Path) -> Qrels:
    """Read relevance judgements. Raises UserError with the file and line."""
    judged: Qrels = {}
    for number, (place, fields) in enumerate(_rows(path)):
        if number == 0 and len(fields) == 3 and not fields[2].lstrip("-")[:1].isdecimal():
            continue  # BEIR's header
        if len(fields) not in (3, 4):
            raise UserError(f"{place}: not a judgement (query 0 document relevance, or query document relevance)")
        query, document, relevance = fields[0], fields[-2], _number(place, fields[-1])
        if relevance != int(relevance):
            raise UserError(f"{place}: the relevance {fields[-1]} is not a whole number")
        if judged.setdefault(query, {}).setdefault(document, int(relevance)) != relevance:
            raise UserError(f"{place}: judges document {document} for query {query} a second time, in another way")
    if not judged:
        raise UserError(f"{path}: has no judgement")
    return judged


def _number(place: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{place}: {text!r} is not a number")
    return number


def _rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, fields) of every line that is not blank: of a line with tabs what is between them."""
    try:
        with open_regular(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
            refuse_other_kind(file.peek(HEAD), path)
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                cells = text.split("\t")
                if text.strip():
                    yield f"{path}:{number}", cells if len(cells) > 2 else text.split()
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot read ({getattr(error, 'strerror', None) or error}); check its path") from error
