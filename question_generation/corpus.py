"""The documents that questions are made from: divided between the splits before anything is made from them.

A document's split is decided by the hash of its words with the seed, so no document is in two splits, nor are two
documents with the same words: copies of one page share a split, and one of them is used. Documents that are merely
alike may still part; `questions/leakage.py` looks at the questions made from them.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ratchet.core.config import SPLITS, GenerationConfig, Split
from ratchet.core.errors import UserError
from ratchet.core.records import Document, content_key
from ratchet.core.words import NO_TOPIC, split_words

MAX_DOCUMENTS = 10_000
"""Documents of one split: a random sample of its share of the corpus, held in memory."""
HEAD_WORDS = 200
"""Documents are related by the title and so many first words."""
CHOICE = 3
"""A second document is drawn from so many that are closest."""


@dataclass(frozen=True)
class Pool:
    """The documents of one split, in an order that the seed decides."""

    documents: tuple[Document, ...]

    @cached_property
    def _heads(self) -> list[set[str]]:
        # By document, the words that few others have: documents about one thing tend to share them.
        heads = [set(split_words(f"{d.title} {d.text}")[:HEAD_WORDS]) - NO_TOPIC for d in self.documents]
        counts = Counter(word for head in heads for word in head)
        few = max(5, len(heads) // 100)
        return [{word for word in head if 2 <= counts[word] <= few} for head in heads]

    @cached_property
    def _holders(self) -> dict[str, list[int]]:
        holders: dict[str, list[int]] = {}
        for number, head in enumerate(self._heads):
            for word in head:
                holders.setdefault(word, []).append(number)
        return holders

    def related(self, number: int) -> list[int]:
        """The documents that share the most rare words with this one, rarer words weighing more; closest first."""
        shared: Counter[int] = Counter()
        for word in sorted(self._heads[number]):
            holders = self._holders[word]
            for other in holders:
                shared[other] += round(1000 * math.log(1 + len(self.documents) / len(holders)))
        del shared[number]
        return sorted(shared, key=lambda other: (-shared[other], other))[:CHOICE]

    @cached_property
    def _paired(self) -> list[int]:
        # A rare word is one that at least two documents have.
        return [number for number, head in enumerate(self._heads) if head]

    def draw(self, start: int, two: bool, rng: random.Random) -> tuple[Document, ...]:
        """The document at `start`, counted around; for two, one with related documents, and one of these, if any."""
        if not two:
            return (self.documents[start % len(self.documents)],)
        if not self._paired:
            return ()
        number = self._paired[start % len(self._paired)]
        return self.documents[number], self.documents[rng.choice(self.related(number))]


@dataclass(frozen=True)
class Corpus:
    """The documents of every split, and counts of what was read and skipped."""

    pools: dict[Split, Pool]
    counts: dict[str, int]
    """Documents read, and skipped as too short, as too long, or as copies of one in the sample."""


def divide_documents(documents: Iterable[Document], settings: GenerationConfig, seed: int) -> Corpus:
    """Read the corpus once and keep a sample for each split: those of the smallest hashes, so any order gives it."""
    low, high = settings.document_words
    counts = Counter({"read": 0, "too short": 0, "too long": 0, "copies": 0})
    heaps: dict[Split, list[tuple[int, str]]] = {split: [] for split in SPLITS}
    kept: dict[str, Document] = {}
    for document in documents:
        counts["read"] += 1
        words = split_words(document.text)
        if not low <= len(words) <= high:
            counts["too short" if len(words) < low else "too long"] += 1
            continue
        key = content_key("document", seed, words)
        if key in kept:
            counts["copies"] += 1
            kept[key] = min(kept[key], document, key=lambda d: d.id)
            continue
        heap = heaps[split_of(key, settings)]
        kept[key] = document
        heapq.heappush(heap, (-int(key, 16), key))
        if len(heap) > MAX_DOCUMENTS:
            del kept[heapq.heappop(heap)[1]]
    pools: dict[Split, Pool] = {}
    for split, heap in heaps.items():
        if settings.wanted(split) and not heap:
            raise UserError(
                f"generation: no document for the {split} questions: of {counts['read']} documents {len(kept)} have "
                f"{low} to {high} words (generation.document_words); widen these limits or bring more documents"
            )
        pools[split] = Pool(tuple(kept[key] for _, key in sorted(heap, reverse=True)))
    return Corpus(pools, dict(counts))


def split_of(key: str, settings: GenerationConfig) -> Split:
    """Where a document goes by its hash: each split gets the share of documents that it wants of the questions."""
    at = int(content_key("split", key)[:12], 16) / 16**12 * sum(settings.wanted(split) for split in SPLITS)
    for split in SPLITS:
        at -= settings.wanted(split)
        if at < 0:
            return split
    raise AssertionError("the shares cover all hashes")
