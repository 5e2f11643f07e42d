"""The Decomposer: a claim as triplets and keywords, and the entities under which the memory keeps evidence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from ratchet.agents.core.claims import distinct
from ratchet.agents.core.output import ANY, AnyText, JsonObject, at_most
from ratchet.agents.core.prompts.documents import one_line
from ratchet.retrieval.memory.records import entity_key

DECOMPOSE = """\
Take the text apart into facts to check. Each has a subject, a relation, an object, and attributions such as time, \
place, quantity or source. Write names in full. Then name the topics. Write one JSON object:
{"triplets": [{"subject": "...", "relation": "...", "object": "...", "attributions": ["..."]}], "keywords": ["..."]}"""

Short = Annotated[AnyText, at_most(characters=80)]
Shorts = Annotated[list[Short], Field(title=ANY)]
Name = Annotated[str, at_most(characters=80), Field(min_length=1)]


class Triplet(JsonObject):
    """One fact of the claim."""

    subject: Name
    relation: Short
    object: Name
    attributions: Shorts = at_most(items=3)


class Decomposition(JsonObject):
    """The Decomposer's reply: the claim's facts and topics."""

    triplets: Annotated[list[Triplet], Field(min_length=1)] = at_most(items=5)
    keywords: Shorts = at_most(items=5)


def entities_of(parts: Decomposition) -> list[str]:
    """The subjects and objects of the facts, each once as the memory tells them apart (`entity_key`)."""
    return _keys(name for triplet in parts.triplets for name in (triplet.subject, triplet.object))


def fact_keys(parts: Decomposition) -> list[str]:
    """The subjects and objects, the triplets as one phrase each, and the keywords, each once."""
    triplets = [f"{triplet.subject} {triplet.relation} {triplet.object}" for triplet in parts.triplets]
    return _keys([*entities_of(parts), *triplets, *parts.keywords])


def _keys(names: Iterable[str]) -> list[str]:
    kept: dict[str, str] = {}
    for name in names:
        kept.setdefault(entity_key(name), one_line(name))
    return [name for key, name in kept.items() if key]


def facts_text(parts: Decomposition) -> str:
    """One triplet a line, then the keywords."""
    lines = []
    for triplet in parts.triplets:
        more = distinct(triplet.attributions)
        fact = " | ".join(one_line(words) for words in (triplet.subject, triplet.relation, triplet.object))
        lines.append(f"- {fact}" + (f" ({'; '.join(more)})" if more else ""))
    topics = distinct(parts.keywords)
    return "\n".join([*lines, *([f"Topics: {', '.join(topics)}"] if topics else [])])
