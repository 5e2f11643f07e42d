"""Exploration by constrained decoding: in some samples of training questions, rules narrow what an agent may write.

At temperature 0.7 a small model hardly ever searches a second time, so selection has no example of it to keep. A rule
takes the JSON schema of an action, with what is known at that point, and returns one that allows less: that the search
goes on, or that the query is a name from what was read. Decoding is constrained to it, and what the model writes within
it is sampled and recorded as ever. Rules hold in sampling (`sampling.explore`, `sampling.curriculum`) and never in an
evaluation.

A rule is a function of a `ChoicePoint`: one of `RULES`, or `narrow` in a file of the user's own. A system says in its
`SearchFields` which fields of its actions decide about searching.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.plugins import Plugin, is_path, load_plugin
from ratchet.core.records import Passage, Question
from ratchet.inference.schemas import SchemaRefused, check_schema
from ratchet.retrieval.names import names_in

Schema = dict[str, Any]

MAX_NAMES = 32
"""Names that a query may be one of: a grammar grows with them."""


@dataclass(frozen=True)
class SearchFields:
    """The fields of a system's JSON actions that decide about searching, by name and value. The value `...` (Ellipsis)
    stands for any: the action is one that has the field."""

    go_on: Mapping[str, Any]
    """With these the system searches, or searches once more."""
    stop: Mapping[str, Any]
    """With these a search ends."""
    queries: tuple[str, ...]
    """The fields that hold a query."""
    keep: Mapping[str, Any] = field(default_factory=dict)
    """The values with which a document that was found is kept."""


@dataclass(frozen=True)
class Lookup:
    """A search, or a call of a tool, and what it found."""

    query: str
    """The query of a search, or the arguments of a tool."""
    passages: tuple[Passage, ...]


@dataclass(frozen=True)
class ChoicePoint:
    """The facts that are known when an agent is about to write an action."""

    role: str
    turn: int
    """Number of the role's earlier actions in this trajectory."""
    schema: Schema
    """The JSON schema of the action."""
    question: Question
    """As the training set has it, with its answers and `gold_ids`."""
    searches: tuple[Lookup, ...]
    """The trajectory's searches so far, the latest last."""
    gold: tuple[Passage, ...]
    """The question's gold documents, in the order of `gold_ids`; empty unless the episode is one of a curriculum."""
    fields: SearchFields | None
    """None where the system declares none."""


@dataclass(frozen=True)
class Rule:
    """A rule that narrows actions."""

    name: str
    """As the config has it; of outside code the stem and the digest of its source. It is part of content keys."""
    narrow: Callable[[ChoicePoint], Schema | None]
    """Returns the narrowed schema, or None to leave it as it is."""
    needs_fields: bool = True
    """True: it needs the system's `SearchFields`."""


def narrowed(schema: Schema, allowed: Mapping[str, Sequence[Any]]) -> Schema | None:
    """A JSON schema in which every field of these names has one of these values; alternatives that cannot are left out.

    These fields must be there. A list's items are narrowed alike. With the value `...` alternatives without the field
    are left out where others have it. Fields that the schema has not are ignored. None where no action is left, or
    every one is.
    """
    definitions = schema.get("$defs", {})
    whole = {key: part for key, part in schema.items() if key != "$defs"}
    made = _narrowed(whole, allowed, definitions)
    if made == _narrowed(whole, {}, definitions):
        return None
    return {**made, "$defs": definitions} if made is not None and '"$ref"' in json.dumps(made) else made


def _narrowed(part: Any, allowed: Mapping[str, Sequence[Any]], definitions: Mapping[str, Any]) -> Any:
    if not isinstance(part, dict):
        return part
    if (name := _reference(part)) in definitions:
        # A definition that refers to itself is narrowed once.
        rest = {key: one for key, one in definitions.items() if key != name}
        return _narrowed(definitions[name], allowed, rest)
    made = dict(part)
    for key in ("anyOf", "oneOf"):
        if key in part:
            made[key] = [fit for one in part[key] if (fit := _narrowed(one, allowed, definitions)) is not None]
            if not made[key]:
                return None
            for name in (name for name, values in allowed.items() if ... in values):
                made[key] = [one for one in made[key] if name in one.get("properties", {})] or made[key]
    if "items" in part:
        made["items"] = _narrowed(part["items"], allowed, definitions)
        if made["items"] is None:
            return None
    properties = {}
    for name, kind in part.get("properties", {}).items():
        values = allowed.get(name, (...,))
        fit = _narrowed(kind, allowed, definitions) if ... in values else _one_of(kind, values, definitions)
        if fit is None:
            return None
        properties[name] = fit
    if not properties:
        return made
    narrow = [name for name in properties if ... not in allowed.get(name, (...,))]
    required = list(dict.fromkeys([*part.get("required", ()), *narrow]))
    return {**made, "properties": properties} | ({"required": required} if required else {})


def _reference(part: Mapping[str, Any]) -> str:
    return str(part.get("$ref", "")).removeprefix("#/$defs/")


def _one_of(kind: Any, values: Sequence[Any], definitions: Mapping[str, Any]) -> Any:
    """The schema of a field that has one of these values, in as far as it takes them; None where it takes none."""
    while (name := _reference(kind)) in definitions:
        kind = definitions[name]
    if kind.get("type") == "array":
        items = _one_of(kind["items"], values, definitions)
        return None if items is None else {**kind, "items": items}
    if "const" in kind or "enum" in kind:
        values = [value for value in values if value in kind.get("enum", [kind.get("const")])]
    else:
        python = {"string": str, "boolean": bool}.get(kind.get("type"), object)
        values = [value for value in values if isinstance(value, python)]
    return {"enum": list(values)} if values else None


# The rules


def search_again(point: ChoicePoint) -> Schema | None:
    """The system searches, and once it has, it goes on for one more search."""
    assert point.fields is not None
    if len(point.searches) >= 2:
        return None
    return _going_on(point)


def _going_on(point: ChoicePoint) -> Schema | None:
    assert point.fields is not None
    return narrowed(point.schema, {name: [value] for name, value in point.fields.go_on.items()})


def quote_names(point: ChoicePoint) -> Schema | None:
    """A query is a name: the first one of the question; a later one of the documents that the search before it found,
    or one of the question that no query had. Free where there is none, as in scripts without capitals."""
    assert point.fields is not None
    names = names_in(point.question.text)
    if point.searches:
        earlier = [search.query.casefold() for search in point.searches]
        found = names_in("\n".join(f"{p.title}\n{p.text}" for p in point.searches[-1].passages))
        names += [name for name in found if name.casefold() not in point.question.text.casefold()]
        names = [name for name in names if not any(name.casefold() in query for query in earlier)]
    return narrowed(point.schema, dict.fromkeys(point.fields.queries, names[:MAX_NAMES])) if names else None


def quote_question(point: ChoicePoint) -> Schema | None:
    """The system searches, and its first query is the question as it stands."""
    assert point.fields is not None
    if point.searches:
        return None
    searching = _going_on(point)
    asked = narrowed(searching or point.schema, {name: [point.question.text] for name in point.fields.queries})
    return asked or searching


def gold_documents(point: ChoicePoint) -> Schema | None:
    """The search finds the gold documents, one after the other and each by its title, keeps what it finds, and ends."""
    assert point.fields is not None
    found = {passage.document_id for search in point.searches for passage in search.passages}
    tried = {search.query for search in point.searches}
    queries = [gold_query(gold) for gold in point.gold if gold.document_id not in found]
    missing = [query for query in queries if query not in tried][:1]
    wanted = {name: [value] for name, value in (point.fields.go_on if missing else point.fields.stop).items()}
    if missing:
        wanted |= dict.fromkeys(point.fields.queries, missing)
    return narrowed(point.schema, wanted | {name: [value] for name, value in point.fields.keep.items()})


RULES = {rule.__name__: rule for rule in (search_again, quote_names, quote_question)}
"""By the name that `sampling.explore.rules` has."""
GOLD_SEARCHES = "gold_searches"
CURRICULUM = {name: Rule(name, gold_documents) for name in ("gold_documents", GOLD_SEARCHES)}
"""The rules of `sampling.curriculum`. Both lead the search; they differ in who learns, and from which samples."""


def load_rules(names: Sequence[str], key: str = "sampling.explore.rules") -> tuple[Rule, ...]:
    """The rules of these names, or of files that define `narrow(point)`. Raises UserError."""
    rules = []
    for name in names:
        if is_path(name):
            plugin = load_plugin("explore", name, ("narrow",), key)
            rules.append(Rule(plugin.label, partial(_narrowed_outside, plugin), needs_fields=False))
        elif name in RULES:
            rules.append(Rule(name, RULES[name]))
        else:
            raise UserError(f"{key}: there is no rule {name!r}{did_you_mean(name, RULES)}")
    return tuple(rules)


def _narrowed_outside(plugin: Plugin, point: ChoicePoint) -> Schema | None:
    with plugin.errors(f"narrow failed on the question {point.question.id!r}"):
        schema: Schema | None = plugin.module.narrow(point)
        try:
            if schema is not None:
                check_schema(schema, grammar=True)
        except SchemaRefused as error:
            raise ValueError(f"it gave a schema that cannot be used: {error}") from error
        return schema


def explored(rules: Sequence[Rule], point: ChoicePoint) -> Schema | None:
    """The point's schema narrowed by one rule after the other; None where no rule has narrowed it."""
    schema = None
    for rule in rules:
        made = rule.narrow(point if schema is None else replace(point, schema=schema))
        schema = schema if made is None else made
    return schema


def gold_query(gold: Passage) -> str:
    """The query by which a gold document is looked for: its title, or its first words."""
    return " ".join(gold.title.split() or gold.text.split()[:8])
