"""The Executor's action: one JSON object, a call of one of the tools on offer or the verdict.

    {thought, action, arguments}    or    {thought, verdict}

Constrained decoding therefore always gives a call that its tool can take, or a label of the task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agents.core.claims import object_schema, one_line
from ratchet.records import Label
from retrieval.sources.source import ToolSpec

DEEPEST = 5
"""Levels of a tool's arguments that are spelt out."""
MOST = 8
"""Fields of an object, and alternatives of a value, that are spelt out."""
LONGEST = 200
"""Characters of a text among the arguments."""
BIGGEST = 10**9


def action_schema(
    specs: Mapping[str, ToolSpec], labels: Sequence[Label], last: bool, look: bool = False
) -> dict[str, Any]:
    """`last`: nothing but a verdict. `look`: no verdict yet."""
    thought = {"type": "string", "maxLength": 600}
    verdict = object_schema(thought=thought, verdict={"enum": [label.name for label in labels]})
    if last:
        return verdict
    calls = [
        object_schema(thought=thought, action={"enum": [name]}, arguments=arguments_schema(spec.schema))
        for name, spec in specs.items()
    ]
    return {"anyOf": calls if look else [*calls, verdict]}


def tools_text(specs: Mapping[str, ToolSpec]) -> str:
    """One tool a line, with its arguments."""
    lines = []
    for name, spec in specs.items():
        fields = arguments_schema(spec.schema).get("properties", {})
        given = spec.schema.get("properties", {})
        told = [f'"{one_line(key)}": {_meaning(given.get(key), part)}' for key, part in fields.items()]
        lines.append(f"{one_line(name)} {{{', '.join(told)}}}: {one_line(spec.about, 300)}")
    return "\n".join(lines)


def _meaning(given: Any, part: Mapping[str, Any]) -> str:
    about = given.get("description") if isinstance(given, Mapping) else None
    if isinstance(about, str):
        return one_line(about, 120)
    return one_line(" or ".join(map(str, part["enum"])), 120) if "enum" in part else str(part.get("type", "a value"))


def arguments_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What of a tool's own schema is kept: objects, lists, choices and plain values, with bounds.

    Anybody's server writes these schemas. What is left out (patterns, formats, references to other files, recursion)
    could not be compiled, might run for ever, or would be fetched; the tool itself refuses what does not fit.
    """
    kept = _kept(schema, schema, 0)
    return kept if kept.get("type") == "object" else {"type": "object"}


def _kept(schema: Any, root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return {}
    if "$ref" in schema:
        return _kept(_pointed(schema["$ref"], root), root, depth + 1)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and choices and all(isinstance(c, str | int | float | None) for c in choices):
        return {"enum": list(dict.fromkeys(choices))}
    either = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(either, list) and either:
        return {"anyOf": [_kept(part, root, depth + 1) for part in either[:MOST]]}
    kind = schema.get("type")
    if isinstance(kind, list) and kind:
        return {
            "anyOf": [_kept({**schema, "type": one}, root, depth + 1) for one in kind[:MOST] if isinstance(one, str)]
        }
    if kind == "object":
        return _kept_object(schema, root, depth)
    if kind == "array":
        return {"type": "array", "items": _kept(schema.get("items"), root, depth + 1), "maxItems": 10}
    if kind == "string":
        return {"type": "string", "maxLength": min(_whole(schema.get("maxLength"), 0, LONGEST), LONGEST)}
    if kind == "integer":
        least = _whole(schema.get("minimum"), -BIGGEST, -BIGGEST)
        return {"type": kind, "minimum": least, "maximum": _whole(schema.get("maximum"), least, BIGGEST)}
    return {"type": kind} if kind in ("boolean", "null", "number") else {}


def _kept_object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        takes_any = schema.get("additionalProperties", True) is not False
        return {"type": "object"} if takes_any else object_schema()
    required = schema.get("required")
    needed = [name for name in required if name in properties] if isinstance(required, list) else []
    names = dict.fromkeys([*needed, *list(properties)[:MOST]])
    fields = {name: _kept(properties[name], root, depth + 1) for name in names}
    for name in needed:
        if fields[name].get("type") == "string" and fields[name]["maxLength"] > 0:
            fields[name]["minLength"] = 1
    return {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}


def _pointed(reference: Any, root: Mapping[str, Any]) -> Any:
    """The part of the same schema that a reference points to."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return {}
    part: Any = root
    for key in reference[2:].split("/"):
        part = part.get(key) if isinstance(part, Mapping) else None
    return part


def _whole(value: Any, least: int, otherwise: int) -> int:
    """A whole number of at least `least`; `otherwise` where the schema says nothing, or nonsense."""
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= BIGGEST else otherwise
