"""The Executor's action: one JSON object, a call of one of the tools on offer or the verdict.

    {thought, action, arguments}    or    {thought, verdict}

or, with `actions: native`, a call in the model's own form after its thought, which stands for the same object.

Constrained decoding therefore always gives a label of the task, or a call that its tool can take but for the lengths of
texts, which a grammar bounds for short replies alone (agents/core/output.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratchet.agents.core.output import Malformed, object_schema, read_output, without_bounds
from ratchet.agents.core.prompts import one_line
from ratchet.agents.core.tools import Said, function
from ratchet.core.errors import UserError
from ratchet.core.records import Label
from ratchet.retrieval.sources.source import ToolSpec

VERDICT = "verdict"
"""The tool that ends, where actions are calls of tools."""
MAX_DEPTH = 5
"""Levels of a tool's arguments that are spelt out."""
MAX_ALTERNATIVES = 8
"""Fields of an object, and alternatives of a value, that are spelt out."""
MAX_CHARACTERS = 200
"""Characters of a text among the arguments."""
MAX_INTEGER = 10**9


def action_schema(
    specs: Mapping[str, ToolSpec], labels: Sequence[Label], last: bool, require_call: bool = False
) -> dict[str, Any]:
    """`last`: nothing but a verdict. `require_call`: no verdict yet."""
    thought = {"type": "string", "maxLength": 600}
    verdict = object_schema(thought=thought, verdict={"enum": [label.name for label in labels]})
    if last:
        return verdict
    calls = [
        object_schema(thought=thought, action={"enum": [name]}, arguments=arguments_schema(spec.schema))
        for name, spec in specs.items()
    ]
    return {"anyOf": calls if require_call else [*calls, verdict]}


def offered_tools(specs: Mapping[str, ToolSpec], labels: Sequence[Label]) -> list[dict[str, Any]]:
    """The tools and the verdict, as a model's own calls of tools have them. UserError where a tool has its name."""
    if VERDICT in specs:
        raise UserError(
            f"sources: a tool is named {VERDICT!r}, as the one that ends; set system.settings.actions: text"
        )
    offered = [function(name, one_line(spec.about, 300), arguments_schema(spec.schema)) for name, spec in specs.items()]
    verdict = object_schema(label={"enum": [label.name for label in labels]})
    return [*offered, function(VERDICT, "Ends with the label.", verdict)]


def read_call(calls_in: Callable[[str], Said], schema: dict[str, Any], text: str) -> dict[str, Any]:
    """The action that a turn's one call stands for, checked as one in JSON is. Raises Malformed."""
    thought, calls = calls_in(text)
    if len(calls) != 1:
        raise Malformed("call one tool in each step, or verdict")
    name, given = calls[0].name, calls[0].value
    action = {"verdict": given.get("label")} if name == VERDICT else {"action": name, "arguments": given}
    return dict(read_output(json.dumps({"thought": thought, **action}), without_bounds(schema)).value)


def tools_text(specs: Mapping[str, ToolSpec]) -> str:
    """One tool a line, with its arguments."""
    lines = []
    for name, spec in specs.items():
        fields = arguments_schema(spec.schema).get("properties", {})
        given = spec.schema.get("properties", {})
        summary = [f'"{one_line(key)}": {_meaning(given.get(key), part)}' for key, part in fields.items()]
        lines.append(f"{one_line(name)} {{{', '.join(summary)}}}: {one_line(spec.about, 300)}")
    return "\n".join(lines)


def _meaning(given: Any, part: Mapping[str, Any]) -> str:
    about = given.get("description") if isinstance(given, Mapping) else None
    if isinstance(about, str):
        return one_line(about, 120)
    return one_line(" or ".join(map(str, part["enum"])), 120) if "enum" in part else str(part.get("type", "a value"))


def arguments_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Keep objects, lists, choices and plain values of a tool's own schema, with bounds.

    Anybody's server writes these schemas. What is left out (patterns, formats, references to other files, recursion)
    could not be compiled, might run for ever, or would be fetched; the tool itself refuses what does not fit.
    """
    kept = _simplified(schema, schema, 0)
    return kept if kept.get("type") == "object" else {"type": "object"}


def _simplified(schema: Any, root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return {}
    if "$ref" in schema:
        return _simplified(_resolve_reference(schema["$ref"], root), root, depth + 1)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and choices and all(isinstance(c, str | int | float | None) for c in choices):
        return {"enum": list(dict.fromkeys(choices))}
    either = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(either, list) and either:
        return {"anyOf": [_simplified(part, root, depth + 1) for part in either[:MAX_ALTERNATIVES]]}
    kind = schema.get("type")
    if isinstance(kind, list) and kind:
        return {
            "anyOf": [
                _simplified({**schema, "type": name}, root, depth + 1)
                for name in kind[:MAX_ALTERNATIVES]
                if isinstance(name, str)
            ]
        }
    if kind == "object":
        return _simplified_object(schema, root, depth)
    if kind == "array":
        return {"type": "array", "items": _simplified(schema.get("items"), root, depth + 1), "maxItems": 10}
    if kind == "string":
        return {
            "type": "string",
            "maxLength": min(_integer(schema.get("maxLength"), 0, MAX_CHARACTERS), MAX_CHARACTERS),
        }
    if kind == "integer":
        minimum = _integer(schema.get("minimum"), -MAX_INTEGER, -MAX_INTEGER)
        return {"type": kind, "minimum": minimum, "maximum": _integer(schema.get("maximum"), minimum, MAX_INTEGER)}
    return {"type": kind} if kind in ("boolean", "null", "number") else {}


def _simplified_object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        takes_any = schema.get("additionalProperties", True) is not False
        return {"type": "object"} if takes_any else object_schema()
    required = schema.get("required")
    needed = [name for name in required if name in properties] if isinstance(required, list) else []
    names = dict.fromkeys([*needed, *list(properties)[:MAX_ALTERNATIVES]])
    fields = {name: _simplified(properties[name], root, depth + 1) for name in names}
    for name in needed:
        if fields[name].get("type") == "string" and fields[name]["maxLength"] > 0:
            fields[name]["minLength"] = 1
    return {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}


def _resolve_reference(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return {}
    part: Any = root
    for key in reference[2:].split("/"):
        part = part.get(key) if isinstance(part, Mapping) else None
    return part


def _integer(value: Any, minimum: int, default: int) -> int:
    """A whole number of at least `minimum`; `default` where the schema says nothing, or nonsense."""
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= MAX_INTEGER else default
    )
