"""The pieces of evidence that a set of records amounts to: merged, sorted by scope and entity, and limited in size.

Everything here is a function of the *set* of records: their order, and records that come twice, change nothing. So
processes that read the same segments see the same memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ratchet.core.records import Passage
from ratchet.retrieval.memory.records import EvidenceRecord

Order = tuple[float, int, str]
"""Time, place and key."""


@dataclass(frozen=True)
class Evidence:
    """A piece as another question left it."""

    passage: Passage
    entity: str
    """The key that it was found under."""
    text: str
    """What it was looked up for."""
    question_id: str
    """Who left it."""
    scope: str
    time: float
    writer: str
    key: str
    """Of the passage's text."""
    order: Order
    """When it was left: the greater, the newer."""


@dataclass
class Piece:
    """One text under one entity in one scope."""

    entity: str
    key: str
    by_question: dict[str, EvidenceRecord] = field(default_factory=dict)
    """By question: its latest record."""
    order: Order = (float("-inf"), 0, "")
    """Of the latest of them all."""

    def add(self, record: EvidenceRecord) -> None:
        known = self.by_question.get(record.question_id)
        if known is None or record.order() > known.order():
            self.by_question[record.question_id] = record
            self.order = max(self.order, self._order_of(record))

    def _order_of(self, record: EvidenceRecord) -> Order:
        return record.time, -record.place, self.key

    def order_without(self, question_id: str | None) -> Order | None:
        """Of the latest that another question left; None where no other has. None leaves out nobody."""
        if question_id not in self.by_question:
            return self.order
        others = (self._order_of(record) for record in self.by_question.values() if record.question_id != question_id)
        return max(others, default=None)

    def records(self) -> list[EvidenceRecord]:
        """One of each question that left it, from old to new."""
        return sorted(self.by_question.values(), key=EvidenceRecord.order)

    def as_seen_by(self, question_id: str) -> Evidence | None:
        """The piece as the first of the other questions left it; None where no other has.

        So whatever a question leaves itself changes neither what it is given, nor how well that fits, nor its order.
        """
        others = [record for record in self.records() if record.question_id != question_id]
        if not others:
            return None
        first = others[0]
        return Evidence(
            passage=first.passage,
            entity=self.entity,
            text=first.text,
            question_id=first.question_id,
            scope=first.scope,
            time=first.time,
            writer=first.writer,
            key=self.key,
            order=self._order_of(first),
        )


class Pieces:
    """Limit: the `per_entity` newest pieces of an entity in a scope. What it leaves out stays here, and counts again if
    it is left again."""

    def __init__(self, per_entity: int) -> None:
        self._per_entity = per_entity
        self._scopes: dict[str, dict[str, dict[str, Piece]]] = {}
        self.latest = float("-inf")
        """The time of the newest record."""

    def add(self, records: Iterable[EvidenceRecord]) -> None:
        for record in records:
            self.latest = max(self.latest, record.time)
            key = record.content()
            groups = self._scopes.setdefault(record.scope, {})
            for entity in record.entities:
                groups.setdefault(entity, {}).setdefault(key, Piece(entity, key)).add(record)

    def scopes(self) -> list[str]:
        return sorted(self._scopes)

    def size(self, scope: str) -> int:
        """Pieces, those that the limit leaves out included."""
        return sum(map(len, self._scopes.get(scope, {}).values()))

    def questions(self, scope: str) -> set[str]:
        """Those that left a piece, within the limit or not."""
        groups = self._scopes.get(scope, {}).values()
        return {question for group in groups for piece in group.values() for question in piece.by_question}

    def entities(self, scope: str) -> list[str]:
        return sorted(self._scopes.get(scope, {}))

    def under(self, scope: str, entity: str) -> list[Piece]:
        """The pieces within the limit, newest first."""
        return self._newest(scope, entity, None)

    def as_seen_by(self, question_id: str, scope: str, entity: str) -> list[Evidence]:
        """What other questions left, within the limit that there is without this question's own pieces."""
        seen = (piece.as_seen_by(question_id) for piece in self._newest(scope, entity, question_id))
        return [evidence for evidence in seen if evidence is not None]

    def _newest(self, scope: str, entity: str, without: str | None) -> list[Piece]:
        pieces = self._scopes.get(scope, {}).get(entity, {}).values()
        known = [(order, piece) for piece in pieces if (order := piece.order_without(without)) is not None]
        known.sort(key=lambda entry: entry[0], reverse=True)
        return [piece for _, piece in known[: self._per_entity]]
