"""Kinds of entities of the Thistlewake Isles and the relations that hold for each.

A relation has one value per subject. `says` are verb phrases with {v} for the value: the same phrases make the
documents, the reference answers and the claims. `asks` are questions with {s} for the subject; {s} may also be a
`role` ("the builder of the ferry Marrowind"), which turns a one-hop question into a two-hop one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """One fact that every entity of a kind has, and the phrases that state it and ask for it."""

    name: str
    values: str
    """A kind of entity (then the relation is a link), a vocabulary, or 'number'."""
    says: tuple[str, ...]
    asks: tuple[str, ...]
    roles: tuple[str, ...] = ()
    """For links: noun phrases for the value, through the subject."""
    span: tuple[int, int] = (0, 0)
    """For numbers: the least and the largest."""


@dataclass(frozen=True)
class Comparison:
    """The questions that compare two entities by a number."""

    relation: str
    larger: tuple[str, ...]
    """Questions with {a} and {b} whose answer is the one with the larger number."""
    smaller: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of entity: how it is named, and its relations."""

    name: str
    title: str
    """The subject's name in a sentence, with {n} for the bare name."""
    mentions: tuple[str, ...]
    """Ways in which a question names it."""
    intro: str
    """How its document opens, before the first verb phrase."""
    relations: tuple[Relation, ...]
    hidden: tuple[str, ...]
    """Relations of which some, drawn per entity, stay out of its document: what nobody can know."""
    comparison: Comparison | None = None

    def relation(self, name: str) -> Relation:
        return next(relation for relation in self.relations if relation.name == name)
