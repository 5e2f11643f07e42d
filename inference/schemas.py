"""JSON schemas as grammars, and the check of one that somebody else wrote before anything is generated under it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ratchet.core.errors import UserError
from ratchet.core.text import short_line
from ratchet.inference.engine import EngineError

MAX_CHARACTERS = 1 << 15
"""Of a schema's JSON. xgrammar takes seconds for 700 properties that may be left out, and minutes for more."""
MAX_LEVELS = 100
"""Objects and lists inside each other: its time grows with their square."""


class SchemaRefused(UserError):
    """A JSON schema that cannot constrain decoding, or of which nobody can say whether an answer fits it."""


class SchemaRejected(EngineError):
    """A server says that it cannot constrain an answer to the request's JSON schema; it may do so for others."""


@lru_cache(maxsize=256)
def schema_grammar(schema: str) -> str:
    """Convert a JSON schema to the grammar that the in-process engine uses, in xgrammar's own notation.

    vLLM compiles a schema itself differently: either with white space anywhere, which small models fill an
    answer with, or (--structured-outputs-config.disable_any_whitespace) with none even where JSON usually has some:
    {"a":1}. Another grammar changes the output of the same model. Raises SchemaRefused.
    """
    import xgrammar

    try:
        return str(xgrammar.Grammar.from_json_schema(schema, any_whitespace=False))
    except RuntimeError as error:
        raise SchemaRefused(f"this JSON schema cannot constrain decoding: {error}: {schema}") from error


def grammar_of(schema: dict[str, Any] | str) -> str:
    """The grammar of what `SamplingParams.schema` asks for. Raises SchemaRefused."""
    return schema if isinstance(schema, str) else schema_grammar(json.dumps(schema))


def only_schema(schema: dict[str, Any] | str | None) -> dict[str, Any] | None:
    """The JSON schema for a server that takes no other grammar. Raises SchemaRefused for a grammar."""
    if isinstance(schema, str):
        raise SchemaRefused("a model that is reached as text takes no grammar but a JSON schema's; use an open model")
    return schema


def check_schema(schema: Any, grammar: bool) -> None:
    """Raise SchemaRefused for a schema that is invalid, too large, or refers to something outside of it: a validator
    would fetch that, and a grammar allows anything in its place. `grammar`: also for one that has no grammar."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    text = json.dumps(schema)
    if len(text) > MAX_CHARACTERS:
        raise SchemaRefused(f"the schema has {len(text)} characters of JSON, and {MAX_CHARACTERS} are the most")
    if not isinstance(schema, dict) or not isinstance(schema.get("$schema", ""), str):
        raise SchemaRefused(f"expected a JSON schema, an object: {text[:100]}")
    for part in _objects(schema):
        if part is not schema and isinstance(part.get("$id"), str):
            raise SchemaRefused("a $id below the root of a schema is not supported")
        if any(isinstance(part.get(key), str) for key in ("$dynamicRef", "$recursiveRef")):
            raise SchemaRefused("the schema refers to others by $dynamicRef or $recursiveRef; use $ref")
        _follow(part, schema)
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path)) or "the schema"
        raise SchemaRefused(f"{where}: {short_line(error.message)}") from None
    if grammar:
        schema_grammar(text)


def _objects(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every object in a schema. SchemaRefused where they are too deep."""
    level: list[Any] = [schema]
    for _ in range(MAX_LEVELS):
        yield from (part for part in level if isinstance(part, dict))
        inner = (part.values() if isinstance(part, dict) else part for part in level)
        level = [part for parts in inner for part in parts if isinstance(part, dict | list)]
        if not level:
            return
    raise SchemaRefused(f"the schema is more than {MAX_LEVELS} levels deep")


def _follow(part: Any, root: dict[str, Any]) -> None:
    """SchemaRefused where a reference leads out of the schema, to nothing, or back to itself."""
    seen = set[str]()
    while isinstance(part, dict) and isinstance(reference := part.get("$ref"), str):
        if reference in seen:
            raise SchemaRefused(f"the reference {reference[:100]!r} leads back to itself")
        seen.add(reference)
        if reference != "#" and not reference.startswith("#/"):
            raise SchemaRefused(
                f"the reference {reference[:100]!r} is not to a part of the schema, such as #/$defs/name"
            )
        part = root
        for name in reference.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if not isinstance(part, dict) or name not in part:
                raise SchemaRefused(f"the reference {reference[:100]!r} leads to nothing")
            part = part[name]
