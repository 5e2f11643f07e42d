"""JSON schemas in the form that structured output of OpenAI's API takes in strict mode, and replies in ours again.

Strict mode wants an object at the root, every key required, no additional properties, a type for every value, and
alternatives of objects that differ in their first key. So

- alternatives at the root go below the key `then`, behind the properties that all of them begin with: a thought stays
  ahead of the action that it is about;
- alternatives that are objects each get a key of their own, such as the tool's name;
- a key that may be left out may be null instead;
- bounds of lengths and numbers are said in the description. The model is held to them by whoever reads the reply.

`plain` undoes all this with the schema in hand, so a system meets what it asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
THEN = "then"
ANNOTATIONS = {"title", "default", "discriminator", "examples", "$schema", "$id", "$comment", "$defs", "description"}
BOUNDS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "pattern": "matches the regular expression {}",
    "format": "in the format {}",
    "uniqueItems": "no item twice",
}
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
MAX_NAME = 64


class Inexpressible(Exception):
    """Strict mode has no form for this schema, such as an object of any keys."""


@dataclass(frozen=True)
class ResponseSchema:
    """What is sent for a schema, and the way back."""

    schema: Schema
    """As the system asked for it."""
    sent: dict[str, Any]
    strict: bool

    def plain(self, value: Any) -> Any:
        """A reply in the form of `sent` as the value of `schema`; what has another form is returned as it is."""
        if self.strict:
            return _plain(value, self.schema, self.schema, at_root=True)
        is_wrapped = self.schema.get("type") != "object" and isinstance(value, dict) and value.keys() == {THEN}
        return value[THEN] if is_wrapped else value


def response_schema(schema: Schema) -> ResponseSchema:
    """The strict form of a schema; where it has none, an object with strict mode off, which the service takes as a
    hint."""
    try:
        sent = _root(schema)
        definitions = {name: _strict(one, schema) for name, one in schema.get("$defs", {}).items()}
        return ResponseSchema(schema, sent | ({"$defs": definitions} if definitions else {}), strict=True)
    except Inexpressible:
        if schema.get("type") == "object":
            return ResponseSchema(schema, dict(schema), strict=False)
        inner = {key: value for key, value in schema.items() if key != "$defs"}
        definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        return ResponseSchema(schema, _object({THEN: inner}) | definitions, strict=False)


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {**properties}, "required": [*properties], "additionalProperties": False}


def _root(schema: Schema) -> dict[str, Any]:
    found = _resolved(schema, schema)
    if found.get("type") == "object":
        return _strict(found, schema)
    shared = _shared(_alternatives(found, schema))
    first = {name: _strict(one, schema) for name, one in shared.items()}
    return _object({**first, THEN: _strict(found, schema) if not first else _either(found, schema, skip=shared)})


def _alternatives(schema: Schema, root: Schema) -> list[Schema]:
    return [_resolved(one, root) for one in schema.get("anyOf") or schema.get("oneOf") or ()]


def _objects(alternatives: Sequence[Schema]) -> list[Schema]:
    return [one for one in alternatives if one.get("type") == "object"]


def _shared(forms: Sequence[Schema]) -> dict[str, Schema]:
    """The properties that all alternatives begin with, equal and required, where all are objects. Each keeps one of its
    own at least."""
    shared: dict[str, Schema] = {}
    if len(forms) < 2 or not all(form.get("type") == "object" and form.get("properties") for form in forms):
        return shared
    columns = zip(*(list(form["properties"].items()) for form in forms), strict=False)
    for column in columns:
        name, one = column[0]
        needed = all(name in form.get("required", ()) for form in forms)
        if name == THEN or not needed or any(other != (name, one) for other in column):
            break
        shared[name] = one
    return {} if any(len(form["properties"]) == len(shared) for form in forms) else shared


def _names(forms: Sequence[Schema], skip: Mapping[str, Any]) -> list[str]:
    """A key for each alternative: the value of its first property where that has one only, or the property's name."""
    names: list[str] = []
    for form in forms:
        own = (item for item in form.get("properties", {}).items() if item[0] not in skip)
        name, one = next(own, ("form", dict[str, Any]()))
        choices = one.get("enum", [one["const"]] if "const" in one else [])
        wanted = re.sub(r"\W", "_", str(choices[0]) if len(choices) == 1 else name)[:MAX_NAME] or "form"
        names.append(wanted if wanted not in names else f"{wanted}_{len(names) + 1}")
    return names


def _either(schema: Schema, root: Schema, skip: Mapping[str, Any]) -> dict[str, Any]:
    """The alternatives; of several objects each below a key of its own, without the properties `skip`."""
    given = schema.get("anyOf") or schema["oneOf"]
    forms = _objects(_alternatives(schema, root))
    if len(forms) < 2:
        return {"anyOf": [_strict(one, root) for one in given]}
    names = iter(_names(forms, skip))
    return {
        "anyOf": [
            _object({next(names): _strict(_without(form, skip) if skip else one, root)})
            if form in forms
            else _strict(one, root)
            for one, form in zip(given, _alternatives(schema, root), strict=True)
        ]
    }


def _without(form: Schema, skip: Mapping[str, Any]) -> Schema:
    properties = {name: one for name, one in form["properties"].items() if name not in skip}
    return {**form, "properties": properties, "required": [n for n in form.get("required", ()) if n not in skip]}


def _strict(schema: Any, root: Schema) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        raise Inexpressible(str(schema))
    if "$ref" in schema:
        _resolved(schema, root)
        return {"$ref": schema["$ref"]}
    found = _typed(schema, root)
    notes = [words.format(schema[key]) for key, words in BOUNDS.items() if schema.get(key) not in (None, False)]
    if about := "; ".join([*([schema["description"]] if "description" in schema else []), *notes]):
        found["description"] = about
    return found


def _typed(schema: Schema, root: Schema) -> dict[str, Any]:
    """Without the bounds. Inexpressible for what strict mode has no form for."""
    kind, rest = schema.get("type"), schema.keys() - ANNOTATIONS - BOUNDS.keys() - {"type"}
    if "enum" in schema or "const" in schema:
        choices = list(schema.get("enum", [schema.get("const")]))
        if any(type(choice) not in TYPES for choice in choices):
            raise Inexpressible("a choice that is no plain value")
        kinds = list(dict.fromkeys(TYPES[type(choice)] for choice in choices))
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": choices}
    if rest in ({"anyOf"}, {"oneOf"}):
        return _either(schema, root, skip={})
    if kind == "object" and rest <= {"properties", "required", "additionalProperties"}:
        if schema.get("additionalProperties", "properties" not in schema):
            raise Inexpressible("an object of any keys")
        needed = schema.get("required", ())
        properties = schema.get("properties", {})
        return _object({n: _strict(one if n in needed else _or_null(one), root) for n, one in properties.items()})
    if kind == "array" and rest == {"items"}:
        return {"type": kind, "items": _strict(schema["items"], root)}
    if kind in TYPES.values() and not rest:
        return {"type": kind}
    raise Inexpressible(str(schema))


def _or_null(schema: Any) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _resolved(schema: Schema, root: Schema) -> Schema:
    """The schema that a reference into `$defs` names."""
    seen = set()
    while isinstance(schema, Mapping) and "$ref" in schema:
        reference = schema["$ref"]
        name = str(reference).removeprefix("#/$defs/")
        if reference in seen or f"#/$defs/{name}" != reference or name not in root.get("$defs", {}):
            raise Inexpressible(str(reference))
        seen.add(reference)
        schema = root["$defs"][name]
    if not isinstance(schema, Mapping):
        raise Inexpressible(str(schema))
    return schema


def _plain(value: Any, schema: Schema, root: Schema, at_root: bool = False) -> Any:
    schema = _resolved(schema, root)
    alternatives = _alternatives(schema, root)
    if at_root and schema.get("type") != "object":
        if not isinstance(value, dict) or THEN not in value:
            return value
        shared = _shared(alternatives)
        if not shared:
            return _plain(value[THEN], schema, root)
        first = {n: _plain(item, shared[n], root) if n in shared else item for n, item in value.items() if n != THEN}
        chosen = _chosen(value[THEN], alternatives, root, shared)
        return first | chosen if isinstance(chosen, dict) else value
    if alternatives:
        forms = _objects(alternatives)
        if isinstance(value, dict) and len(forms) > 1:
            return _chosen(value, forms, root, {})
        kind = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else None
        fitting = [one for one in alternatives if kind is not None and one.get("type") == kind]
        return _plain(value, fitting[0], root) if fitting else value
    if isinstance(value, dict) and schema.get("type") == "object":
        properties, needed = schema.get("properties", {}), schema.get("required", ())
        kept = {n: item for n, item in value.items() if item is not None or n in needed or n not in properties}
        return {n: _plain(item, properties[n], root) if n in properties else item for n, item in kept.items()}
    if isinstance(value, list) and schema.get("type") == "array":
        return [_plain(item, schema["items"], root) for item in value]
    return value


def _chosen(value: Any, forms: Sequence[Schema], root: Schema, skip: Mapping[str, Any]) -> Any:
    """The alternative that the only key of `value` names."""
    if isinstance(value, dict) and len(value) == 1:
        (name, item), names = next(iter(value.items())), _names(forms, skip)
        if name in names:
            return _plain(item, _without(forms[names.index(name)], skip), root)
    return value
