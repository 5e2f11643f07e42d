"""Grammars under which a model must call a tool, in the form of its own chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.inference.schemas import SchemaRefused, check_schema
from ratchet.inference.tool_calls import KEY, CallForm

ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|.)", re.DOTALL)
"""xgrammar writes ß as \\xdf, and reads digits that follow as part of it; \\u00df has four."""


def call_grammar(form: CallForm, tools: Sequence[Mapping[str, Any]]) -> str:
    """The grammar of one call of one of these tools, in xgrammar's notation, which the in-process engine and vLLM read.

    SchemaRefused where a tool's parameters are no schema that can constrain decoding, or the form has no grammar.
    """
    try:
        calls = [_one_call(form, tool["function"]) for tool in tools]
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
        part = xgrammar.Grammar.concat(before, _value(kind, schema), behind)
        parts.append(part if key in needed else xgrammar.Grammar.union(part, _text("")))
    return parts


def _value(kind: Any, schema: Mapping[str, Any]) -> Any:
    """A value as tags have it: text stands there without quotes, and does not close a tag."""
    import xgrammar

    kind = kind if isinstance(kind, dict) else {}
    values = kind.get("enum")
    if values and all(isinstance(value, str) for value in values):
        return _either([_text(value) for value in values])
    if kind.get("type") == "string":
        return xgrammar.Grammar.from_ebnf('root ::= ([^<] | "<" [^/<])*')
    return _json({**kind, "$defs": schema.get("$defs", {})} if "$defs" in schema else kind)


def _words(form: CallForm, schema: Mapping[str, Any]) -> list[Any]:
    """The arguments of a notation with bare words. What has no simple name and type is left out where it may be."""
    import xgrammar

    needed, properties, brackets = schema.get("required", ()), [*schema.get("properties", {}).items()], "()"
    if form.pair[0].endswith(":"):  # Gemma, whose template sorts them
        properties, brackets = sorted(properties), "{}"
    rest, first = _text(""), _text("")  # what may follow where an argument was written before, and where none was
    for key, kind in reversed(properties):
        value = _word(form, kind) if key.isidentifier() else None
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


def _word(form: CallForm, kind: Any) -> Any:
    """A value among bare words; None where it is no plain text, number, truth value or choice of texts."""
    import xgrammar

    kind = kind if isinstance(kind, dict) else {}
    values, quote = kind.get("enum"), form.quote
    ends = {*"'\\"} if quote == "'" else {"<"}
    if values and all(isinstance(value, str) and not ends & {*value} for value in values):
        return _either([_text(f"{quote}{value}{quote}") for value in values])
    if kind.get("type") == "string":
        inside = xgrammar.Grammar.from_ebnf(r"root ::= [^'\\\n]*" if quote == "'" else r"root ::= [^<\n]*")
        return xgrammar.Grammar.concat(_text(quote), inside, _text(quote))
    if kind.get("type") == "boolean" and quote == "'":
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
