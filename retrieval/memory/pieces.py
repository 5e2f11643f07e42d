"""The pieces of evidence that a set of records amounts to: merged, sorted by scope and entity, and limited in size.

Everything here is a function of the *set* of records: their order, and records that come twice, change nothing. So
processes that read the same segments see the same memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ratchet.records import Passage
from retrieval.memory.records import EvidenceRecord

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
    """Limits: the `per_entity` newest pieces of an entity, and of these the `max_pieces` newest of a scope.

    What a limit leaves out stays here, and counts again if it is left again.
    A scope has limits of its own, so that no scope's evidence is pushed out by another's.
    """

    def __init__(self, per_entity: int, max_pieces: int) -> None:
        self._per_entity, self._max_pieces = per_entity, max_pieces
        self._scopes: dict[str, dict[str, dict[str, Piece]]] = {}
        self._sizes: dict[str, int] = {}
        self._cutoffs: dict[str, dict[str | None, tuple[float, int, str, str] | None]] = {}
        """By scope and who is left out, the oldest that its limit lets in; None: all. Not there: to be computed."""

    def add(self, records: Iterable[EvidenceRecord]) -> None:
        for record in records:
            key = record.content()
            groups = self._scopes.setdefault(record.scope, {})
            for entity in record.entities:
                group = groups.setdefault(entity, {})
                if key not in group:
                    group[key] = Piece(entity, key)
                    self._sizes[record.scope] = self._sizes.get(record.scope, 0) + 1
                group[key].add(record)
            self._cutoffs.pop(record.scope, None)

    def scopes(self) -> list[str]:
        return sorted(self._scopes)

    def size(self, scope: str) -> int:
        """Pieces, those that the limits leave out included."""
        return self._sizes.get(scope, 0)

    def questions(self, scope: str) -> set[str]:
        """Those that left a piece, within the limits or not."""
        groups = self._scopes.get(scope, {}).values()
        return {question for group in groups for piece in group.values() for question in piece.by_question}

    def entities(self, scope: str) -> list[str]:
        return sorted(self._scopes.get(scope, {}))

    def under(self, scope: str, entity: str) -> list[Piece]:
        """The pieces within the limits, newest first."""
        return self._within(scope, entity, None)

    def as_seen_by(self, question_id: str, scope: str, entity: str) -> list[Evidence]:
        """What other questions left, within the limits that there are without this question's own pieces."""
        seen = (piece.as_seen_by(question_id) for piece in self._within(scope, entity, question_id))
        return [evidence for evidence in seen if evidence is not None]

    def _within(self, scope: str, entity: str, without: str | None) -> list[Piece]:
        cutoff = self._cutoff(scope, without)
        newest = self._newest(scope, entity, without)
        return [piece for order, piece in newest if cutoff is None or (*order, entity) >= cutoff]

    def _newest(self, scope: str, entity: str, without: str | None) -> list[tuple[Order, Piece]]:
        pieces = self._scopes.get(scope, {}).get(entity, {}).values()
        known = [(order, piece) for piece in pieces if (order := piece.order_without(without)) is not None]
        return sorted(known, key=lambda entry: entry[0], reverse=True)[: self._per_entity]

    def _cutoff(self, scope: str, without: str | None) -> tuple[float, int, str, str] | None:
        cutoffs = self._cutoffs.setdefault(scope, {})
        if without not in cutoffs:
            cutoff = None
            if self.size(scope) > self._max_pieces:
                newest = ((entity, self._newest(scope, entity, without)) for entity in self.entities(scope))
                orders = [(*order, entity) for entity, group in newest for order, _ in group]
                cutoff = sorted(orders)[-self._max_pieces] if len(orders) > self._max_pieces else None
            cutoffs[without] = cutoff
        return cutoffs[without]
