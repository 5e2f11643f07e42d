"""JSON schemas and calls of tools as grammars, and the check of a schema that somebody else wrote before anything is
generated under it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ratchet.core.errors import UserError
from ratchet.core.text import short_line
from ratchet.inference.engine import EngineError
from ratchet.inference.tool_calls import KEY, CallForm, pointed, resolved

MAX_CHARACTERS = 1 << 15
"""The limit of a schema's JSON. xgrammar takes seconds for 700 properties that may be left out, and minutes for
more."""
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
    """Return the grammar of `SamplingParams.schema`. Raises SchemaRefused."""
    return schema if isinstance(schema, str) else schema_grammar(json.dumps(schema))


def only_schema(schema: dict[str, Any] | str | None) -> dict[str, Any] | None:
    """Return the JSON schema for a server that takes no other grammar. Raises SchemaRefused for a grammar."""
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
    """Yield every object in a schema. Raises SchemaRefused where they are too deep."""
    level: list[Any] = [schema]
    for _ in range(MAX_LEVELS):
        yield from (part for part in level if isinstance(part, dict))
        inner = (part.values() if isinstance(part, dict) else part for part in level)
        level = [part for parts in inner for part in parts if isinstance(part, dict | list)]
        if not level:
            return
    raise SchemaRefused(f"the schema is more than {MAX_LEVELS} levels deep")


def _follow(part: Any, root: dict[str, Any]) -> None:
    """Raise SchemaRefused where a reference leads out of the schema, to nothing, or back to itself."""
    seen = set[str]()
    while isinstance(part, dict) and isinstance(reference := part.get("$ref"), str):
        if reference in seen:
            raise SchemaRefused(f"the reference {reference[:100]!r} leads back to itself")
        seen.add(reference)
        if reference != "#" and not reference.startswith("#/"):
            raise SchemaRefused(
                f"the reference {reference[:100]!r} is not to a part of the schema, such as #/$defs/name"
            )
        part = pointed(root, reference)
        if part is None:
            raise SchemaRefused(f"the reference {reference[:100]!r} leads to nothing")


# Calls of tools, in the form of a model's own chat template


ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|.)", re.DOTALL)
"""xgrammar writes ß as \\xdf, and reads digits that follow as part of it; \\u00df has four."""


def call_grammar(form: CallForm, tools: Sequence[Mapping[str, Any]], otherwise: Mapping[str, Any] | None = None) -> str:
    """Return the grammar of one call of one of these tools, in xgrammar's notation, or of JSON of the schema
    `otherwise`.

    Raises SchemaRefused where a tool's parameters are no schema that can constrain decoding, or the form has no
    grammar.
    """
    try:
        calls = [_one_call(form, tool["function"]) for tool in tools]
        calls += [_json(otherwise)] if otherwise is not None else []
        written = str(_either(calls))
    except RuntimeError as error:
        raise SchemaRefused(f"the parameters of a tool cannot constrain decoding: {error}") from error
    return ESCAPE.sub(lambda found: rf"\u00{found[1]}" if found[1] else found[0], written)


def _one_call(form: CallForm, function: Mapping[str, Any]) -> Any:
    import xgrammar

    name, schema = str(function["name"]), function.get("parameters") or {"type": "object"}
    check_schema(schema, grammar=False)
    opening = form.section[0] + form.openings[0].replace("{name}", name)
    closing = form.closing + form.section[1]
    if form.arguments == "pairs":
        parts = _pairs(form, schema)
    elif form.arguments == "words":
        parts = _words(form, schema)
    else:
        parts = [_json(schema)]
    if form.arguments == "object":
        opening += f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{form.key}": '
        closing = "}" + closing
    return xgrammar.Grammar.concat(_text(opening.lstrip("\n")), *parts, _text(closing))


def _pairs(form: CallForm, schema: Mapping[str, Any]) -> list[Any]:
    """The arguments in their schema's order; those that are not required may be left out."""
    import xgrammar

    needed, parts = schema.get("required", ()), list[Any]()
    for key, kind in schema.get("properties", {}).items():
        if not KEY.fullmatch(key):
            raise SchemaRefused(f"this model's template has no form for an argument of the name {key[:50]!r}")
        before, behind = (_text(part.replace("{key}", key)) for part in form.pair)
        part = xgrammar.Grammar.concat(before, _value(form, resolved(kind, schema), schema), behind)
        parts.append(part if key in needed else xgrammar.Grammar.union(part, _text("")))
    return parts


def _value(form: CallForm, kind: dict[str, Any], schema: Mapping[str, Any]) -> Any:
    """A value as tags have it: text stands there without quotes, and neither closes the argument nor begins another."""
    values = kind.get("enum")
    if values and all(isinstance(value, str) for value in values):
        return _either([_text(value) for value in values])
    if kind.get("type") == "string":
        return _text_without(form.pair[1].strip(), form.pair[0].partition("{key}")[0])
    return _json({**kind, "$defs": schema.get("$defs", {})} if "$defs" in schema else kind)


def _text_without(*forbidden: str) -> Any:
    """Any text that has none of these in it, as a finite automaton: a state is what of a forbidden text has begun."""
    import xgrammar

    begun = sorted({text[:end] for text in forbidden for end in range(len(text))}, key=len)
    letters, rules = sorted({*"".join(forbidden)}), list[str]()
    for state, before in enumerate(begun):
        leads, other = ['""'], ""
        for letter in letters:
            said = before + letter
            behind = next(said[at:] for at in range(len(said) + 1) if said[at:] in begun)
            if said.endswith(forbidden) or behind:
                other += f"\\u{ord(letter):04x}"
                leads += [] if said.endswith(forbidden) else [f"{json.dumps(letter)} s{begun.index(behind)}"]
        rules.append(f"s{state} ::= {f'[^{other}]* (' if not before else f'[^{other}] s0 | ('}{' | '.join(leads)})")
    return xgrammar.Grammar.from_ebnf("\n".join(["root ::= s0", *rules]))


def _words(form: CallForm, schema: Mapping[str, Any]) -> list[Any]:
    """The arguments of a notation with bare words. What has no simple name and type is left out where it may be."""
    import xgrammar

    needed, properties, brackets = schema.get("required", ()), [*schema.get("properties", {}).items()], "()"
    if form.pair[0].endswith(":"):  # Gemma, whose template sorts them
        properties, brackets = sorted(properties), "{}"
    rest, first = _text(""), _text("")  # what may follow where an argument was written before, and where none was
    for key, kind in reversed(properties):
        value = _word(form, resolved(kind, schema)) if key.isidentifier() else None
        if value is None and key in needed:
            raise SchemaRefused(f"this model's template has no simple form for {key[:50]!r}; leave tool_choice at auto")
        if value is None:
            continue
        opening = form.pair[0].replace("{key}", key)
        begun = xgrammar.Grammar.concat(_text(opening), value, rest)
        later = xgrammar.Grammar.concat(_text(form.pair[1] + opening), value)
        rest = xgrammar.Grammar.concat(later if key in needed else xgrammar.Grammar.union(later, _text("")), rest)
        first = begun if key in needed else xgrammar.Grammar.union(begun, first)
    return [_text(brackets[0]), first, _text(brackets[1])]


def _word(form: CallForm, kind: dict[str, Any]) -> Any:
    """A value among bare words; None where it is no plain text, number, truth value or choice of texts."""
    import xgrammar

    values, quote, python = kind.get("enum"), form.quote, form.quote == "'"
    if values and all(isinstance(value, str) and (python or quote not in value) for value in values):
        if python:
            values = [re.sub(r"[\\']", r"\\\g<0>", value).replace("\n", r"\n") for value in values]
        return _either([_text(f"{quote}{value}{quote}") for value in values])
    if kind.get("type") == "string":
        escaped = r"""root ::= ([^'\\\n] | "\\" ['"\\nrt])*"""
        inside = xgrammar.Grammar.from_ebnf(escaped) if python else _text_without(quote)
        return xgrammar.Grammar.concat(_text(quote), inside, _text(quote))
    if kind.get("type") == "boolean" and python:
        return xgrammar.Grammar.union(_text("True"), _text("False"))
    return _json(kind) if kind.get("type") in ("integer", "number", "boolean") else None


def _either(grammars: Sequence[Any]) -> Any:
    import xgrammar

    return grammars[0] if len(grammars) == 1 else xgrammar.Grammar.union(*grammars)


def _json(schema: Mapping[str, Any]) -> Any:
    import xgrammar

    return xgrammar.Grammar.from_json_schema(json.dumps(schema), any_whitespace=False)


def _text(text: str) -> Any:
    import xgrammar

    return xgrammar.Grammar.from_ebnf(f"root ::= {json.dumps(text, ensure_ascii=False)}")
