"""The evidence memory: what systems that keep one found out, by entity, for the questions that follow.

Source: MERMAID (2026, arXiv 2601.22361), whose executor begins with the evidence that earlier claims left under the
entities of this one. Costs no model calls and no retrievals; recall by meaning encodes texts with the embedder.

String recall, as in the paper: every piece under exactly these entities, but for case, punctuation and the like. One
name is one entity: asked for Apple, the company, it gives what was kept of the fruit as well. The paper names that as
its limitation, and recall by meaning is our answer. It takes the entities of the same or a near name ("Apple Inc.",
and "the iPhone maker" too, for "Apple") and of their pieces those that fit the claim: the cosine of the claim with what
a piece was looked up for and its passage, taken together.

The thresholds were set on 57 claims of our own about 18 subjects that share 9 names (Apple, Mercury, Java, Turkey...),
with all-MiniLM-L6-v2. Of the pieces on the claim's own subject, and of those on its namesake, this share passes:

    similarity    0.35  0.40  0.45  0.50  0.55
    own subject   0.87  0.79  0.68  0.52  0.38
    namesake      0.56  0.32  0.14  0.04  0.02

0.5 misses much and lets in little: a piece missed costs a search, a piece of the wrong thing may cost the verdict.
Names of one thing have a cosine from 0.58 (coronavirus, COVID-19; Apple Inc., the iPhone maker) to 0.95, but so have
the two world wars (0.79): near names widen the choice, and the pieces' content makes it.

Boundaries. A question is given what other questions of its own scope left, in the order and within the limits that it
would have had it left nothing itself: its samples and its re-runs do not feed each other. A scope is one experiment: a
round of training, or one arm on one question set, under settings none of which has changed. Its name is what it is for
and a key of all that it samples (`sampling.pool.with_memory_scope`), so a change starts with an empty memory, and the
same command again resumes its own.

Deviations from the paper, which keeps its memory in one process for one run: pieces are limited in number and in
length (`MemoryLimits`), merged when they are the same, and kept with where they came
from. Its published description does not say how many of the pieces a prompt is given; here those under the most of the
entities come first, then the newest.
"""

from __future__ import annotations

import math
import os
import platform
import re
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.core.config import Config, MemoryConfig
from ratchet.core.errors import UserError
from ratchet.core.files import Line, Segment, read_lines
from ratchet.core.records import Passage, Record, content_key, with_title
from ratchet.core.text import replace_surrogates
from ratchet.retrieval.encoders.limits import Embed
from ratchet.retrieval.names import entity_key

if TYPE_CHECKING:
    import numpy as np


Order = tuple[float, int, str]
"""Time, place and the key of the text."""


class EvidenceRecord(Record):
    """One passage that one question left under its entities: a line of a segment. Lines never change."""

    scope: str
    entities: tuple[str, ...]
    """Keys."""
    passage: Passage
    text: str
    """The text that it was looked up for, such as the claim."""
    question_id: str
    time: float
    """Unix time."""
    place: int = 0
    """Among the passages left at once, the first being the best."""
    writer: str = ""
    """The segment that it was first written to: machine, process and a random part."""

    def content(self) -> str:
        """Equal passage text, equal evidence, whoever found it and wherever."""
        return content_key(self.passage.text)

    def newness(self) -> Order:
        """When the text was left: the greater, the newer."""
        return self.time, -self.place, self.content()

    def order(self) -> tuple[float, int, str, str, str, str]:
        """From old to new; the same everywhere, whatever was read first."""
        return self.time, -self.place, self.writer, self.question_id, self.passage.id, self.text


@dataclass
class Piece:
    """One text under one entity in one scope."""

    key: str
    by_question: dict[str, EvidenceRecord] = field(default_factory=dict)
    """The latest record of each question."""
    order: Order = (float("-inf"), 0, "")
    """The order of the latest of them all."""

    def add(self, record: EvidenceRecord) -> None:
        known = self.by_question.get(record.question_id)
        if known is None or record.order() > known.order():
            self.by_question[record.question_id] = record
            self.order = max(self.order, record.newness())

    def order_without(self, question_id: str | None) -> Order | None:
        """Return the order of the latest that another question left; None where no other has. None leaves out
        nobody."""
        if question_id not in self.by_question:
            return self.order
        others = (record.newness() for record in self.by_question.values() if record.question_id != question_id)
        return max(others, default=None)

    def records(self) -> list[EvidenceRecord]:
        return sorted(self.by_question.values(), key=EvidenceRecord.order)

    def as_seen_by(self, question_id: str) -> EvidenceRecord | None:
        """Return what the first of the other questions left; None where no other has left it.

        So whatever a question leaves itself changes neither what it is given, nor how well that fits, nor its order.
        """
        return next((record for record in self.records() if record.question_id != question_id), None)


class Pieces:
    """Limit: the `per_entity` newest pieces of an entity in a scope. What it leaves out stays here, and counts again if
    it is left again."""

    def __init__(self, per_entity: int) -> None:
        self._per_entity = per_entity
        self.scopes: dict[str, dict[str, dict[str, Piece]]] = {}
        self.latest = float("-inf")
        """The time of the newest record."""

    def add(self, records: Iterable[EvidenceRecord]) -> None:
        for record in records:
            self.latest = max(self.latest, record.time)
            key = record.content()
            groups = self.scopes.setdefault(record.scope, {})
            for entity in record.entities:
                groups.setdefault(entity, {}).setdefault(key, Piece(key)).add(record)

    def questions(self, scope: str) -> set[str]:
        """Those that left a piece, within the limit or not."""
        groups = self.scopes.get(scope, {}).values()
        return {question for group in groups for piece in group.values() for question in piece.by_question}

    def entities(self, scope: str) -> list[str]:
        return sorted(self.scopes.get(scope, {}))

    def under(self, scope: str, entity: str) -> list[Piece]:
        """The pieces within the limit, newest first."""
        return self._newest(scope, entity, None)

    def as_seen_by(self, question_id: str, scope: str, entity: str) -> list[EvidenceRecord]:
        """Return what other questions left, within the limit that there is without this question's own pieces."""
        seen = (piece.as_seen_by(question_id) for piece in self._newest(scope, entity, question_id))
        return [record for record in seen if record is not None]

    def _newest(self, scope: str, entity: str, without: str | None) -> list[Piece]:
        pieces = self.scopes.get(scope, {}).get(entity, {}).values()
        known = [(order, piece) for piece in pieces if (order := piece.order_without(without)) is not None]
        known.sort(key=lambda entry: entry[0], reverse=True)
        return [piece for _, piece in known[: self._per_entity]]


class MemoryFiles:
    """Threads must take turns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer = _fresh_name()
        self._segment: Segment | None = None
        self._read: dict[Path, Line] = {}
        """By segment: the last line that was read."""

    def append(self, record: EvidenceRecord) -> None:
        if self._segment is None:
            self._segment = Segment(self.folder / f"{self.writer}.jsonl")
        self._segment.append(record)

    def read_new(self) -> list[EvidenceRecord]:
        """Read what has come since the last call, of all segments. Raises UserError, and reads the same again then."""
        records, read = list[EvidenceRecord](), {}
        for path in self.segments():
            try:
                for line, data in read_lines(path, self._read.get(path)):
                    records.append(line.parse(data, EvidenceRecord))
                    read[path] = line
            except OSError as error:
                raise UserError(f"{path}: cannot read ({error.strerror}); fix the folder's permissions") from error
        self._read |= read
        return records

    def segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def close(self) -> None:
        """A later `append` opens the folder again, under a new name."""
        if self._segment is not None:
            self._segment.close()
        self._segment = None
        self.writer = _fresh_name()


def _fresh_name() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "", platform.node())[:40] or "host"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class MemoryLimits:
    """Limits of what is recalled."""

    characters: int = 4000
    """Characters of a piece that is recalled, and of the text that it was looked up for. The rest is cut."""
    similarity: float = 0.5
    """Recall by meaning: minimum cosine similarity of the claim and a piece."""
    name_similarity: float = 0.55
    """Recall by meaning: minimum cosine similarity of two entities' names."""
    recalled: int = 10
    """Pieces that a question is given."""
    kept: int = 50
    """Pieces of an entity in a scope that are looked at: the newest."""


LIMITS = MemoryLimits()


class Memory:
    """Threads may call it at once, and so may other processes on the same folder."""

    def __init__(self, config: MemoryConfig, folder: Path, limits: MemoryLimits = LIMITS) -> None:
        """Nothing is made in the folder before the first piece."""
        self.limits = limits
        # As when the path, `across` and all limits, one of them on a whole scope, were keys of the config, and without
        # the newer key where it is off.
        once_set = {"path": "", "across": False, "pieces": 100_000} | asdict(limits)
        once_set |= {"most": once_set.pop("recalled"), "per_entity": once_set.pop("kept")}
        settings = once_set | ({"sequential": True} if config.sequential else {})
        self.digest = content_key("memory", settings)
        self.files = MemoryFiles(folder)
        self._pieces = Pieces(limits.kept)
        self._vectors = _VectorCache()
        self._lock = threading.Lock()

    def recall(
        self, entities: Sequence[str], text: str, scope: str, question_id: str, embed: Embed | None = None
    ) -> list[EvidenceRecord]:
        """Return evidence under these entities that other questions left, best first; each passage once. One that is
        cut has an id that says so.

        With `embed`, by meaning: of entities with near names too, but only what fits `text`, such as the claim.
        """
        asked = _keys(entities)
        if embed is None or not asked:
            return self._best((entity, record, 0.0) for entity, record in self._under(asked, scope, question_id))
        names = self._near(asked, scope, embed)
        known = self._under(names, scope, question_id)
        if not known:
            return []
        texts = [with_title(r.text, with_title(r.passage.title, r.passage.text)) for _, r in known]
        fits = self._vectors.of(texts, embed) @ self._vectors.of([text], embed)[0]
        fitting = zip(known, fits.tolist(), strict=True)
        return self._best((*found, fit) for found, fit in fitting if fit >= self.limits.similarity)

    def remember(
        self, entities: Sequence[str], passages: Sequence[Passage], text: str, scope: str, question_id: str
    ) -> int:
        """Leave passages under these entities, the best first; returns how many pieces of an entity are new to the
        scope.

        They are on disk when it returns. What other questions know already is not written again.
        """
        keys = _keys(entities)
        looked_up = replace_surrogates(text[: self.limits.characters])
        left: dict[str, Passage] = {}
        for passage in passages:
            if passage.text.strip():
                left.setdefault(passage.text, passage)
        new = 0
        with self._lock:
            pieces = self._read()
            now = max(time.time(), math.nextafter(pieces.latest, math.inf))  # newest, also where the clock was set back
            live = {(key, piece.key): piece for key in keys for piece in pieces.under(scope, key)}
            for place, passage in enumerate(left.values()):
                record = EvidenceRecord(
                    scope=scope,
                    entities=tuple(keys),
                    passage=passage,
                    text=looked_up,
                    question_id=question_id,
                    time=now,
                    place=place,
                    writer=self.files.writer,
                )
                known = {key: live.get((key, record.content())) for key in keys}
                new += sum(piece is None for piece in known.values())
                # Two questions make a piece everybody's: a third adds nothing.
                wanted = [
                    k
                    for k, p in known.items()
                    if p is None or (len(p.by_question) < 2 and question_id not in p.by_question)
                ]
                if wanted:
                    self.files.append(record.model_copy(update={"entities": tuple(wanted)}))
            self._read()
        return new

    def questions(self, scope: str) -> set[str]:
        with self._lock:
            return self._read().questions(scope)

    def pieces(self) -> Pieces:
        """All that is kept now, for who looks into it. Not to be used while other threads write."""
        with self._lock:
            return self._read()

    def close(self) -> None:
        with self._lock:
            self.files.close()

    def _under(self, keys: Sequence[str], scope: str, question_id: str) -> list[tuple[str, EvidenceRecord]]:
        with self._lock:
            pieces = self._read()
            return [(key, record) for key in keys for record in pieces.as_seen_by(question_id, scope, key)]

    def _near(self, asked: Sequence[str], scope: str, embed: Embed) -> list[str]:
        with self._lock:
            names = self._read().entities(scope)
        if not names:
            return []
        likeness = (self._vectors.of(names, embed) @ self._vectors.of(asked, embed).T).max(axis=1)
        near = (likeness >= self.limits.name_similarity).tolist()
        return [name for name, like in zip(names, near, strict=True) if like or name in asked]

    def _best(self, fitting: Iterable[tuple[str, EvidenceRecord, float]]) -> list[EvidenceRecord]:
        """Return each text once: the best fitting first, then what is under the most entities, then the newest.
        `fitting`: the entity, the record and how well it fits."""
        groups: dict[str, list[tuple[str, EvidenceRecord, float]]] = {}
        for found in fitting:
            groups.setdefault(found[1].content(), []).append(found)
        ranked = []
        for group in groups.values():
            _, best, fit = max(group, key=lambda found: (found[2], found[1].newness(), found[0]))
            ranked.append((fit, len({entity for entity, _, _ in group}), best.newness(), best))
        ranked.sort(key=lambda entry: entry[:3], reverse=True)
        return [self._cut(entry[3]) for entry in ranked[: self.limits.recalled]]

    def _read(self) -> Pieces:
        self._pieces.add(self.files.read_new())
        return self._pieces

    def _cut(self, record: EvidenceRecord) -> EvidenceRecord:
        passage = record.passage.with_text(record.passage.text[: self.limits.characters])
        return record.model_copy(update={"passage": passage})


def _keys(entities: Sequence[str]) -> list[str]:
    """Return the keys of the entities, each once, in order; what has no letter or number is no entity."""
    return list(dict.fromkeys(key for key in map(entity_key, entities) if key))


def memory_of(config: Config) -> Memory:
    """The memory of a config's run."""
    return Memory(config.memory or MemoryConfig(), config.folder / "memory")


class _VectorCache:
    """Encodes each text once in a process. Threads may ask at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._embed: Embed | None = None
        self._known: dict[str, np.ndarray] = {}

    def of(self, texts: Sequence[str], embed: Embed) -> np.ndarray:
        """Return float32 [n, dimension]; n must not be 0. What is not known yet is encoded in one batch."""
        import numpy as np  # late: `ratchet status` loads this module too, and needs no arrays

        with self._lock:
            if embed is not self._embed:
                self._embed, self._known = embed, {}
            known = self._known
            missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            vectors = np.asarray(embed(missing), np.float32)
            with self._lock:
                known.update(zip(missing, vectors, strict=True))
        return np.stack([known[text] for text in texts])
