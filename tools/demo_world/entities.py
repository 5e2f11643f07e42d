"""The isles themselves: which entities there are, what is true of them, and the document that tells it.

The archipelago falls into three groups of islands, one for each split. Links stay within a group, so that no
document that answers a test question answers a training question too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tools.demo_world.kinds import Kind, Relation
from tools.demo_world.lives import ANIMAL, DISH, FERRY, FESTIVAL, GUILD, PERSON
from tools.demo_world.names import ENTITY_NAMES, VOCABULARIES
from tools.demo_world.places import BRIDGE, ISLAND, LIGHTHOUSE, TOWN

KINDS = {kind.name: kind for kind in (ISLAND, TOWN, FERRY, PERSON, GUILD, FESTIVAL, DISH, BRIDGE, ANIMAL, LIGHTHOUSE)}
SPLITS = ("train", "dev", "test")
SIZES = {
    "island": (6, 2, 6),
    "town": (8, 3, 8),
    "person": (18, 6, 18),
    "ferry": (12, 4, 12),
    "guild": (6, 2, 6),
    "festival": (6, 2, 6),
    "dish": (8, 2, 8),
    "bridge": (8, 3, 8),
    "animal": (6, 2, 6),
    "lighthouse": (6, 2, 6),
}
"""Entities of a kind in train, dev and test."""

JOBS = {"ferry": "a shipwright", "bridge": "a bridge builder", "dish": "a cook", "guild": "a master of crafts"}
"""A person's job says which kind of entity he or she is linked to; JOB_CYCLE gives most people the commonest one."""
JOB_CYCLE = ("ferry", "dish", "bridge", "guild", "ferry", "dish", "bridge", "guild", "ferry")

HIDDEN = 2
"""Relations of every entity that its document leaves out: three facts are what a small model can read."""


@dataclass(frozen=True)
class Entity:
    """An island, a town, a person...: its name and all that is true of it."""

    kind: Kind
    name: str
    split: str
    values: Mapping[str, str]
    """Relation to value: an entity's name, a word of a vocabulary, or a number in digits."""
    hidden: tuple[str, ...]
    """Relations that the corpus keeps silent about."""
    job: str = ""
    pronoun: str = "it"

    @property
    def id(self) -> str:
        return f"{self.kind.name}-{self.name.lower().replace(' ', '-')}"

    @property
    def title(self) -> str:
        return self.kind.title.format(n=self.name)

    def stated(self) -> list[Relation]:
        return [relation for relation in self.kind.relations if relation.name not in self.hidden]


@dataclass(frozen=True)
class Document:
    """A document of the demo's corpus."""

    id: str
    title: str
    text: str


def capitalise(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def build_entities(rng: random.Random) -> dict[str, Entity]:
    """Name to entity, for all three groups of islands."""
    pools = {kind: rng.sample(names, len(names)) for kind, names in ENTITY_NAMES.items()}
    numbers = {
        (kind.name, relation.name): iter(_numbers(relation, sum(SIZES[kind.name]), rng))
        for kind in KINDS.values()
        for relation in kind.relations
        if relation.values == "number"
    }
    entities: dict[str, Entity] = {}
    for group, split in enumerate(SPLITS):
        names = {kind: [pools[kind].pop() for _ in range(sizes[group])] for kind, sizes in SIZES.items()}
        jobs = {name: JOB_CYCLE[i % len(JOB_CYCLE)] for i, name in enumerate(names["person"])}
        for kind in KINDS.values():
            columns = {
                relation.name: [str(next(numbers[kind.name, relation.name])) for _ in names[kind.name]]
                if relation.values == "number"
                else _cycle(_choices(kind, relation, names, jobs), len(names[kind.name]), rng)
                for relation in kind.relations
            }
            for i, name in enumerate(names[kind.name]):
                entities[name] = Entity(
                    kind=kind,
                    name=name,
                    split=split,
                    values={relation: column[i] for relation, column in columns.items()} | _fixed(kind, i, names),
                    hidden=tuple(rng.sample(kind.hidden, HIDDEN)),
                    job=JOBS[jobs[name]] if kind is PERSON else "",
                    pronoun=rng.choice(("she", "he")) if kind is PERSON else "it",
                )
    return entities


def _numbers(relation: Relation, count: int, rng: random.Random) -> list[int]:
    """Distinct numbers: no two entities share a year or a length."""
    low, high = relation.span
    return rng.sample(range(low, high + 1, 10 if high > 2000 else 1), count)


def _choices(kind: Kind, relation: Relation, names: dict[str, list[str]], jobs: dict[str, str]) -> list[str]:
    if relation.values == "person":
        return [name for name in names["person"] if jobs[name] == kind.name]
    return names[relation.values] if relation.values in names else list(VOCABULARIES[relation.values])


def _cycle(choices: list[str], count: int, rng: random.Random) -> list[str]:
    """`count` values, each used once before any is used twice."""
    order = rng.sample(choices, len(choices))
    return [order[i % len(order)] for i in range(count)]


def _fixed(kind: Kind, i: int, names: dict[str, list[str]]) -> dict[str, str]:
    """A chief town lies on its own island: the first towns of a group are the islands' chief towns, in order."""
    if kind is ISLAND:
        return {"chief_town": names["town"][i]}
    if kind is TOWN:
        return {"island": names["island"][i % len(names["island"])]}
    return {}


def state_value(relation: Relation, value: str, rng: random.Random) -> str:
    """A verb phrase that states the value."""
    return re.sub(r"\ba (?=[aeiou])", "an ", rng.choice(relation.says).format(v=value))


def write_document(entity: Entity, rng: random.Random) -> Document:
    """One fact a sentence; the subject is named in the first and in every other one."""
    sentences = []
    for number, relation in enumerate(rng.sample(entity.stated(), len(entity.stated()))):
        opening = entity.pronoun if number % 2 else entity.title
        if number == 0:
            opening = entity.kind.intro.format(t=entity.title, job=entity.job)
        sentences.append(f"{capitalise(opening)} {state_value(relation, entity.values[relation.name], rng)}.")
    return Document(id=entity.id, title=entity.title.removeprefix("the "), text=" ".join(sentences))
