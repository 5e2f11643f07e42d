"""Grammars under which a model must call a tool, in the form of its own chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inference.schemas import SchemaRefused, check_schema
from inference.tool_calls import KEY, CallForm


def call_grammar(form: CallForm, tools: Sequence[Mapping[str, Any]]) -> str:
    """The grammar of one call of one of these tools, in xgrammar's notation, which the in-process engine and vLLM read.

    SchemaRefused where a tool's parameters are no schema that can constrain decoding, or the form has no grammar.
    """
    import xgrammar

    if form.arguments == "words":
        raise SchemaRefused(
            "a call cannot be forced in the notation of this model's template, whose texts have no JSON form; leave "
            "tool_choice at auto"
        )
    try:
        calls = [_one_call(form, tool["function"]) for tool in tools]
        return str(calls[0] if len(calls) == 1 else xgrammar.Grammar.union(*calls))
    except RuntimeError as error:
        raise SchemaRefused(f"the parameters of a tool cannot constrain decoding: {error}") from error


def _one_call(form: CallForm, function: Mapping[str, Any]) -> Any:
    import xgrammar

    name, schema = str(function["name"]), function.get("parameters") or {"type": "object"}
    check_schema(schema, grammar=False)
    opening = form.section[0] + form.openings[0].replace("{name}", name)
    closing = form.closing + form.section[1]
    if form.arguments == "pairs":
        parts = _pairs(form, schema)
    else:
        parts = [_json(schema)]
    if form.arguments == "object":
        opening += f'{{"name": {json.dumps(name)}, "{form.key}": '
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
        texts = [_text(value) for value in values]
        return texts[0] if len(texts) == 1 else xgrammar.Grammar.union(*texts)
    if kind.get("type") == "string":
        return xgrammar.Grammar.from_ebnf('root ::= ([^<] | "<" [^/<])*')
    return _json({**kind, "$defs": schema.get("$defs", {})} if "$defs" in schema else kind)


def _json(schema: Mapping[str, Any]) -> Any:
    import xgrammar

    return xgrammar.Grammar.from_json_schema(json.dumps(schema), any_whitespace=False)


def _text(text: str) -> Any:
    import xgrammar

    return xgrammar.Grammar.from_ebnf(f"root ::= {json.dumps(text)}")
