"""A corpus out of the evidence that benchmarks carry, so that verification can be tried without a network.

Only what a benchmark's `documents` gives: texts of evidence, never a claim, a label, a stance or a verdict. Documents
are named `<benchmark>:<what does not change>`, and questions name theirs by it, so that retrieval can be scored.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.core.config import SplitConfig
from ratchet.core.errors import UserError
from ratchet.core.files import write_atomic
from ratchet.core.records import Document, content_key
from ratchet.questions.benchmark import Benchmark, PlacedRow, first_file, load_benchmark
from ratchet.questions.load import load_split, read_rows

NO_EVIDENCE = (KeyError, TypeError, ValueError, AttributeError)
"""Errors that a benchmark's `documents` raises for a row that is not as the benchmark has it."""


def document_by_content(benchmark: str, text: str, title: str = "") -> Document:
    """A document that has no name of its own: equal texts are one document."""
    return Document(f"{benchmark}:{content_key(title, text)[:16]}", text, title)


@dataclass(frozen=True)
class EvidenceSource:
    """NAME, NAME/SPLIT or either with :PATH, as the command takes it."""

    benchmark: Benchmark
    split: str
    """Empty: every split that is there."""
    path: str

    @classmethod
    def parse(cls, text: str) -> EvidenceSource:
        name, _, path = text.partition(":")
        name, _, split = name.partition("/")
        benchmark = load_benchmark(name)
        if split:
            benchmark.split(SplitConfig(benchmark=name, split=split))
        return cls(benchmark, split, path)

    def files(self) -> list[tuple[str, Path]]:
        """(split, file) of what is asked for. Raises UserError where nothing is there."""
        benchmark = self.benchmark
        every = [self.split] if self.split else list(benchmark.splits)
        configs = [SplitConfig(benchmark=benchmark.name, split=split, path=self.path) for split in every]
        files = [(config.split, path) for config in configs if (path := benchmark.find(config))]
        if not files:
            looked = f"looked for the split {', '.join(every)}"
            raise UserError(f"{benchmark.folder(configs[0])}: no {benchmark.title} here; {looked}")
        return files


@dataclass
class Corpus:
    """Documents in the order in which they came; parts of one document are lines, each of them once."""

    parts: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    titles: dict[str, str] = field(default_factory=dict)

    def add(self, source: EvidenceSource) -> int:
        """Add a benchmark's evidence; returns how many documents it gave. Raises UserError."""
        given = set()
        for document in evidence(source):
            given.add(document.id)
            self.titles.setdefault(document.id, document.title)
            self.parts[document.id][document.text] = None
        return len(given)

    def remove_gold(self, source: EvidenceSource) -> int:
        """Leave out the gold documents of a benchmark's questions; returns how many were there. Raises UserError."""
        gold = {
            document
            for split, path in source.files()
            for question in load_split(
                SplitConfig(benchmark=source.benchmark.name, split=split, path=source.path or str(path)), seed=0
            ).questions
            for document in question.gold_ids
        }
        held = gold & self.parts.keys()
        for document in held:
            del self.parts[document]
        return len(held)

    def write(self, path: Path) -> None:
        rows = ({"id": key, "title": self.titles[key], "text": "\n".join(parts)} for key, parts in self.parts.items())
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        write_atomic(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def evidence(source: EvidenceSource) -> Iterator[Document]:
    """Every piece of evidence that is there, repeats as well. Raises UserError."""
    benchmark = source.benchmark
    if benchmark.documents is None:
        return
    for split, path in source.files():
        for place, row in _evidence_rows(benchmark, split, path):
            try:
                with benchmark.plugin.errors(f"documents failed at {place}", *NO_EVIDENCE):
                    documents = [document for document in benchmark.documents(row) if document.text.strip()]
            except NO_EVIDENCE as error:
                raise UserError(
                    f"{place}: no evidence as {benchmark.title} has it ({type(error).__name__}: {error}); is this the "
                    "right file?"
                ) from error
            yield from documents


def _evidence_rows(benchmark: Benchmark, split: str, path: Path) -> Iterable[PlacedRow]:
    if not benchmark.evidence:
        return benchmark.split_rows(read_rows(path), split, path.parent)
    beside = first_file(path.parent, benchmark.evidence)
    if beside is None:
        raise UserError(
            f"{path.parent}: no {' or '.join(benchmark.evidence)} beside {path.name}, which would hold the evidence of "
            f"{benchmark.title}; get it from {benchmark.source}"
        )
    return read_rows(beside)
