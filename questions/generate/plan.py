"""What each candidate is to be made of, before any model is asked: a pure function of seed, split and number.

A question's categories are drawn once; each of its attempts takes other documents. So what the categories ask for
decides the mix, and not what is easiest to write, and a run that was interrupted plans the same again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from index_build.documents import Document
from questions.generate.categories import Categories, two_documents
from questions.generate.corpus import Corpus
from questions.generate.settings import SPLITS, Settings, Split
from ratchet.records import content_key


@dataclass(frozen=True)
class Wanted:
    """One question that is to be made."""

    split: Split
    number: int
    combination: int
    categories: dict[str, str]


@dataclass(frozen=True)
class Task:
    """One attempt at it."""

    key: str
    wanted: Wanted
    attempt: int
    documents: tuple[Document, ...]
    """Empty where two related documents are wanted and the split has none."""


def plan(categories: Categories, settings: Settings, seed: int) -> list[Wanted]:
    """All questions, split by split."""
    planned = []
    for split in SPLITS:
        for number in range(settings.wanted(split)):
            combination, drawn = categories.draw(random.Random(content_key("categories", seed, split, number)))
            planned.append(Wanted(split, number, combination, drawn))
    return planned


def task(wanted: Wanted, attempt: int, corpus: Corpus, settings: Settings, seed: int) -> Task:
    """Documents are taken in the pool's order, so that all are used before one is used again."""
    key = content_key("candidate", seed, wanted.split, wanted.number, attempt)
    start = wanted.number + attempt * settings.wanted(wanted.split)
    two = two_documents(wanted.categories)
    return Task(key, wanted, attempt, corpus.pools[wanted.split].draw(start, two, random.Random(key)))
