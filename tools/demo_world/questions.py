"""Questions and claims about the isles, each answered by the documents of its own split."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ratchet.records import Question, Record
from tools.demo_world.entities import Entity, capitalise, state_value
from tools.demo_world.kinds import Relation
from tools.demo_world.names import VOCABULARIES

T = TypeVar("T")

ONE_HOP, TWO_HOP, COMPARISON = "one_hop", "two_hop", "comparison"
COUNTS = {
    "train": {ONE_HOP: 72, TWO_HOP: 30, COMPARISON: 18},
    "dev": {ONE_HOP: 18, TWO_HOP: 8, COMPARISON: 4},
    "test": {ONE_HOP: 72, TWO_HOP: 30, COMPARISON: 18},
}
MORE_DEV = {ONE_HOP: 54, TWO_HOP: 24, COMPARISON: 12}
"""Enough that a second round's gain can be seen (`python -m evaluation power`)."""
CLAIMS = {"train": 16, "dev": 8, "test": 16}
"""Claims of each label."""
PER_ENTITY = 2
"""At most so many one-hop questions about one entity."""
EXCLUSIVE = frozenset(
    ("number", "colour", "weekday", "month", "figurehead", "emblem", "ingredient", "material")
) | frozenset(("island", "town", "person"))
"""Values of which the world can hold one alone: to state another refutes it."""
LABELS = ("SUPPORTS", "REFUTES", "NOT ENOUGH INFO")


class Claim(Record):
    """A claim with its label."""

    id: str
    claim: str
    label: str
    gold_ids: tuple[str, ...]
    """The documents that decide it; none where nothing does."""


@dataclass(frozen=True)
class Path:
    """One fact, or a link followed by a fact about what it leads to."""

    subject: Entity
    last: Entity
    relation: Relation
    link: Relation | None = None

    @property
    def value(self) -> str:
        return self.last.values[self.relation.name]

    @property
    def gold_ids(self) -> tuple[str, ...]:
        return (self.subject.id,) if self.link is None else (self.subject.id, self.last.id)

    @property
    def pattern(self) -> tuple[str, ...]:
        return (self.subject.kind.name, self.link.name if self.link else "", self.relation.name)


def short_answers(kind: str, value: str) -> tuple[str, ...]:
    """The answer as documents write it, then what else is right."""
    if kind == "person":
        return (value, value.split()[-1])
    if kind == "guild":
        return (f"{value} Guild", value)
    return (value,)


def one_hop_paths(entities: Mapping[str, Entity], split: str) -> list[Path]:
    """Every fact about every entity of a split."""
    return [Path(e, e, relation) for e in entities.values() if e.split == split for relation in e.kind.relations]


def two_hop_paths(entities: Mapping[str, Entity], split: str) -> list[Path]:
    """Link and fact, where the first document holds no value that could be taken for the answer."""
    paths = []
    for path in one_hop_paths(entities, split):
        if not path.relation.roles:
            continue
        stated_values = {relation.values for relation in path.subject.stated()} | {path.subject.kind.name}
        last = entities[path.value]
        paths += [
            Path(path.subject, last, r, path.relation) for r in last.kind.relations if r.values not in stated_values
        ]
    return paths


def is_stated(path: Path) -> bool:
    """Whether the corpus tells it (links are never hidden)."""
    return path.relation.name not in path.last.hidden


def spread(items: list[T], group: Callable[[T], Hashable], rng: random.Random) -> list[T]:
    """Shuffled, such that every group has had its n-th item before any has its n+1-th."""
    seen: Counter[Hashable] = Counter()
    ranked = []
    for item in rng.sample(items, len(items)):
        ranked.append((seen[group(item)], item))
        seen[group(item)] += 1
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def mention(path: Path, rng: random.Random) -> str:
    """How a question or a claim names what it is about: by name, or through the link."""
    name = rng.choice(path.subject.kind.mentions).format(n=path.subject.name)
    return rng.choice(path.link.roles).format(s=name) if path.link else name


def path_question(path: Path, identity: str, rng: random.Random) -> Question:
    """A one-hop or two-hop question with its answer and reference."""
    said = state_value(path.relation, path.value, rng)
    about = mention(path, rng)
    if path.link is None:
        reference = f"{capitalise(path.subject.title)} {said}."
    else:
        pronoun = "who" if path.last.kind.name == "person" else "which"
        reference = f"{capitalise(about)} is {path.last.title}, {pronoun} {said}."
    return Question(
        id=identity,
        text=rng.choice(path.relation.asks).format(s=about),
        answers=short_answers(path.relation.values, path.value),
        reference=reference,
        nuggets=(path.value,) if path.link is None else (path.value, path.last.name),
        gold_ids=path.gold_ids,
        kind=ONE_HOP if path.link is None else TWO_HOP,
    )


def comparison_question(pair: tuple[Entity, Entity], identity: str, rng: random.Random) -> Question:
    """A question about which of two entities has the larger or smaller number."""
    comparison = pair[0].kind.comparison
    assert comparison is not None
    relation = pair[0].kind.relation(comparison.relation)
    lower, higher = sorted(pair, key=lambda entity: int(entity.values[relation.name]))
    larger = rng.random() < 0.5
    winner, loser = (higher, lower) if larger else (lower, higher)
    first, second = rng.sample(pair, 2)
    said = rng.choice(relation.says)
    phrases = [f"{e.title} {said.format(v=e.values[relation.name])}" for e in (winner, loser)]
    return Question(
        id=identity,
        text=rng.choice(comparison.larger if larger else comparison.smaller).format(a=first.title, b=second.title),
        answers=short_answers(winner.kind.name, winner.name),
        reference=f"It is {winner.title}: {phrases[0]}, while {phrases[1]}.",
        nuggets=(winner.name, winner.values[relation.name], loser.values[relation.name]),
        gold_ids=(first.id, second.id),
        kind=COMPARISON,
    )


def comparable_pairs(entities: Mapping[str, Entity], split: str) -> list[tuple[Entity, Entity]]:
    """Pairs of a kind whose numbers are well apart: 8 years, or a quarter of the smaller one."""
    pairs = []
    members = [e for e in entities.values() if e.split == split and e.kind.comparison]
    for i, one in enumerate(members):
        for other in members[i + 1 :]:
            if one.kind is not other.kind or one.kind.comparison is None:
                continue
            name = one.kind.comparison.relation
            low, high = sorted(int(e.values[name]) for e in (one, other))
            years = one.kind.relation(name).span[0] >= 1000
            if high - low >= (8 if years else low / 4):
                pairs.append((one, other))
    return pairs


def make_questions(
    entities: Mapping[str, Entity], split: str, rng: random.Random, counts: Mapping[str, int] | None = None
) -> list[Question]:
    """The questions of a split, as many of each kind as `counts` says, or COUNTS."""
    counts = counts or COUNTS[split]
    used: Counter[str] = Counter()
    chosen: list[Path] = []
    for path in spread([p for p in one_hop_paths(entities, split) if is_stated(p)], lambda p: p.pattern, rng):
        if len(chosen) < counts[ONE_HOP] and used[path.subject.id] < PER_ENTITY:
            used[path.subject.id] += 1
            chosen.append(path)
    two_hops = [p for p in two_hop_paths(entities, split) if is_stated(p)]
    chosen += spread(two_hops, lambda p: p.pattern, rng)[: counts[TWO_HOP]]
    pairs = spread(comparable_pairs(entities, split), lambda pair: pair[0].kind.name, rng)[: counts[COMPARISON]]
    asked: list[Path | tuple[Entity, Entity]] = [*chosen, *pairs]
    rng.shuffle(asked)
    return [
        path_question(item, f"{split}-{number:03}", rng)
        if isinstance(item, Path)
        else comparison_question(item, f"{split}-{number:03}", rng)
        for number, item in enumerate(asked, 1)
    ]


def make_claims(entities: Mapping[str, Entity], split: str, rng: random.Random) -> list[Claim]:
    """A third each, every one about a fact of its own; one claim in four goes through a link."""
    count = CLAIMS[split]
    wanted = ((two_hop_paths(entities, split), count // 4), (one_hop_paths(entities, split), count - count // 4))
    used: set[tuple[str, str]] = set()
    claims: list[tuple[Path, str]] = []
    for paths, number in wanted:
        exclusive = spread([p for p in paths if p.relation.values in EXCLUSIVE], lambda p: p.pattern, rng)
        for label in LABELS:
            fitting = [p for p in exclusive if is_stated(p) == (label != LABELS[2])]
            for path in [p for p in fitting if (p.last.id, p.relation.name) not in used][:number]:
                used.add((path.last.id, path.relation.name))
                claims.append((path, label))
    rng.shuffle(claims)
    return [
        make_claim(path, label, f"{split}-claim-{i:02}", entities, rng) for i, (path, label) in enumerate(claims, 1)
    ]


def make_claim(path: Path, label: str, identity: str, entities: Mapping[str, Entity], rng: random.Random) -> Claim:
    """The fact as it is, or with another entity's value of the same relation in its place."""
    value = path.value
    if label == LABELS[1]:
        value = rng.choice(sorted(_other_values(path, entities) - {value, path.subject.name}))
    about = mention(path, rng) if path.link else path.subject.title
    claim = f"{capitalise(about)} {state_value(path.relation, value, rng)}."
    return Claim(id=identity, claim=claim, label=label, gold_ids=() if label == LABELS[2] else path.gold_ids)


def _other_values(path: Path, entities: Mapping[str, Entity]) -> set[str]:
    """What could stand in the value's place: words of its vocabulary, or what the same split knows."""
    values = path.relation.values
    near = [e for e in entities.values() if e.split == path.last.split]
    if values in VOCABULARIES:
        return set(VOCABULARIES[values])
    if values == "number":
        return {e.values[path.relation.name] for e in near if e.kind is path.last.kind}
    return {e.name for e in near if e.kind.name == values}
