"""Approximate search: how much a search may leave out so that it finds the wanted share of the exact results.

The choice is made on one half of some queries, and the recall that is reported is measured on the other half. Both are
counted, not timed, so the same index, queries and wanted recall give the same choice on every machine. The choice is
kept in the index folder, in recall.json, until the index or what is asked for changes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ratchet.config import SearchConfig
from ratchet.errors import UserError
from ratchet.files import read_jsonl, read_record, write_record
from ratchet.progress import Progress
from ratchet.records import Record, content_key
from retrieval.index import Ranking, Store
from retrieval.sparse.engine import EXACT, Engine, Pruning, SparseQuery
from retrieval.sparse.ranker import QueryReader

RECALL = "recall.json"
# What is tried. Where less of a query's weight is added up, more chunks have to be looked at.
PRUNINGS = tuple(
    Pruning(mass, candidates)
    for mass in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    for candidates in (2, 3, 4, 6, 8, 12, 16, 24, 32)
)
# A pruning that saves less than this share of the work is not worth a missed chunk.
WORTH = 0.1
# Queries that are made from the index where the user names none, and their words.
SAMPLED, SAMPLED_WORDS = 400, 12
MOST_QUESTIONS = 2000


class MeasuredRecall(Record):
    """What a search leaves out, and what it finds all the same."""

    key: str
    """Of the index, the queries and what was asked for."""
    wanted: float
    depth: int
    mass: float
    candidates: int
    """See `Pruning`; 1 and 0 where the search is exact."""
    recall: float
    """Mean share of the exact best `depth` that was found for the queries that did not choose."""
    work: float
    """The work for them as a share of an exact search's."""
    queries: int
    """Those that did not choose."""
    source: str
    """Where the queries are from."""

    @property
    def pruning(self) -> Pruning:
        return Pruning(self.mass, self.candidates)

    def __str__(self) -> str:
        """Describe the measurement in a line."""
        if self.pruning == EXACT:
            return f"search is exact: no faster one found {self.wanted:g} of the best {self.depth} ({self.source})"
        below = "" if self.recall >= self.wanted else f", below the {self.wanted:g} asked for"
        return (
            f"search finds {self.recall:.4f} of the exact best {self.depth}{below}, at {self.work:.0%} of the work "
            f"(on {self.queries} queries: {self.source})"
        )


def measured_recall(
    folder: Path, digest: str, wanted: SearchConfig, engine: Engine, read: QueryReader, store: Store
) -> MeasuredRecall:
    """Return how the index with this digest is searched: as measured before, else it is measured now, and kept.

    Raises UserError where there are no two questions to measure with.
    """
    questions = None if wanted.questions is None else read_questions(Path(wanted.questions))
    key = content_key(digest, wanted.recall, wanted.depth, questions)
    path = folder / RECALL
    with contextlib.suppress(UserError):  # a damaged file is written again
        known = read_record(path, MeasuredRecall, "")
        if known is not None and known.key == key:
            return known
    texts = sample_queries(store) if questions is None else questions
    source = (
        f"{SAMPLED_WORDS} words of chunks of the index" if questions is None else f"questions of {wanted.questions}"
    )
    if len(texts) < 2:
        raise UserError(f"search.recall: is measured with two queries or more, and there are {len(texts)} ({source})")
    pruning, recall, work = choose_pruning(engine, read(texts), wanted.recall, wanted.depth, store.allowed(None))
    measured = MeasuredRecall(
        key=key,
        wanted=wanted.recall,
        depth=wanted.depth,
        mass=pruning.mass,
        candidates=pruning.candidates,
        recall=recall,
        work=work,
        queries=len(texts[1::2]),
        source=source,
    )
    print(f"{folder}: {measured}", file=sys.stderr)
    with contextlib.suppress(OSError, UserError):  # an index on a disk that cannot be written is measured every time
        write_record(path, measured)
    return measured


def choose_pruning(
    engine: Engine,
    queries: Sequence[SparseQuery],
    wanted: float,
    depth: int,
    allowed: Sequence[np.ndarray] | None = None,
) -> tuple[Pruning, float, float]:
    """Choose the cheapest of PRUNINGS by every other query; returns it with its recall and work on the other queries.

    The choice is EXACT where none of them finds `wanted` of the best `depth`, or none saves work.
    """
    chosen_by, measured_by = queries[::2], queries[1::2]
    least = (1 - WORTH) * engine.work(chosen_by, depth)
    works = [(engine.work(chosen_by, depth, pruning), pruning) for pruning in PRUNINGS]
    worthwhile = [pruning for work, pruning in sorted(works, key=lambda pair: pair[0]) if work < least]
    chosen, truth = EXACT, engine.search(chosen_by, depth, allowed)
    with Progress(f"measuring what finds {wanted:g} of the best {depth}", len(worthwhile)) as progress:
        for pruning in worthwhile:
            progress.advance()
            if mean_recall(truth, engine.search(chosen_by, depth, allowed, pruning=pruning)) >= wanted:
                chosen = pruning
                break
    truth = engine.search(measured_by, depth, allowed)
    found = engine.search(measured_by, depth, allowed, pruning=chosen)
    saved = engine.work(measured_by, depth, chosen) / max(engine.work(measured_by, depth), 1)
    return chosen, mean_recall(truth, found), saved


def mean_recall(truth: Sequence[Ranking], found: Sequence[Ranking]) -> float:
    """Return the mean share of the true chunks that were found; for a query without any it is 1."""
    shares = [
        float(np.isin(best.chunks, ranking.chunks).mean()) if len(best) else 1.0
        for best, ranking in zip(truth, found, strict=True)
    ]
    return float(np.mean(shares))


def sample_queries(store: Store) -> list[str]:
    """Return texts to search for: the words in the middle of SAMPLED chunks at equal distances."""
    texts = []
    for chunk in dict.fromkeys(len(store) * i // SAMPLED for i in range(SAMPLED if len(store) else 0)):
        passage = store.passage(chunk, 0.0)
        words = (passage.text or passage.title).split()
        middle = max(0, (len(words) - SAMPLED_WORDS) // 2)
        texts.append(" ".join(words[middle : middle + SAMPLED_WORDS]))
    return texts


def read_questions(path: Path) -> list[str]:
    """Return the first MOST_QUESTIONS questions of a JSONL file. Raises UserError."""
    texts = []
    for number, row in read_jsonl(path, "question"):
        if not isinstance(row.get("question"), str):
            raise UserError(f"{path}:{number}: search.questions: the object has no text under `question`")
        texts.append(row["question"])
        if len(texts) == MOST_QUESTIONS:
            break
    return texts
