"""The one reader of JSON that a model wrote: an action, a judge's reply, a made question.

The last complete object after the thoughts counts. A reply that was decoded with a grammar has to stand alone or in a
```json fence, and to fit its schema exactly. Of any other, what the papers' published parsers take is taken: JSON5, any
fence, and fields that only one reading fits (`ratchet.core.records.Repair` names the cases, and every reply says
which it needed).

A schema's upper bounds are there for grammars alone: a small model rambles, and its reply must end within its tokens.
`grammar` has them where that is so; then what reaches a bound is counted, since more was lost. No other reply is held
to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import pyjson5
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from ratchet.core.records import Repair
from ratchet.core.text import MAX_LEVELS, storable_value
from ratchet.inference.thoughts import without_thoughts

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

Schema = dict[str, Any] | type[BaseModel]
ANY = "any JSON value"
"""Title of a field in a schema whose type the field's source leaves open: a grammar asks for the type here, and of a
reply without one any value is taken. (Titles say nothing to a grammar.)"""
AnyText = Annotated[str, Field(title=ANY)]
"""Text: null is none, texts in a list are lines, and what else is no text is its JSON."""
AnyTexts = Annotated[list[AnyText], Field(title=ANY)]
"""A list of texts: null is none, and what else is no list is its one item."""
AnyInteger = Annotated[int | None, WithJsonSchema({"type": "integer", "title": ANY})]
"""An integer; None where it is none."""
FENCE_OPENS = re.compile(r"```[^\S\n]*(\w*)\Z")
BRACE_OR_TEXT = re.compile(r'"(?:\\.|[^"\\])*+"?|\'(?:\\.|[^\'\\\n])*+\'?|//[^\n]*+|/\*.*?(?:\*/|\Z)|[{}]', re.DOTALL)
"""A text or comment that nothing closes reaches to the end (in single quotes, of the line): no part is read twice."""
MAX_BOUNDED_TOKENS = 256
"""A reply that may have no more tokens has a grammar with bounds."""
MAX_BROKEN, UNCLOSED = 1000, 100
"""The reading of a reply ends after so many objects that cannot be read. A brace that nothing closes counts as UNCLOSED
of them: to find that out takes a pass over the text behind it."""
MAX_DIGITS = 300
"""Digits of an integer: a float holds 308, and Python writes no more than 4,300."""
INTEGER, NUMBER = re.compile(r"\s*[-+]?\d{1,18}\s*"), re.compile(r"\s*[-+]?\d{1,18}(?:\.\d{1,18})?\s*")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits):,} digits is too large")
    return int(digits)


JSON, WITH_BREAKS = json.JSONDecoder(parse_int=_integer), json.JSONDecoder(parse_int=_integer, strict=False)
"""The second takes line breaks in texts."""
FORM = "expected one JSON object, bare or in one ```json block"


def _drop_docstring(schema: dict[str, Any]) -> None:
    schema.pop("description", None)


def at_most(items: int = 0, characters: int = 0) -> Any:
    """A field with an upper bound for grammars, which no reply is held to when it is read."""
    return Field(json_schema_extra={"maxItems": items} if items else {"maxLength": characters})


class JsonObject(BaseModel):
    """A JSON object that a model writes. Docstrings of its classes are no part of the schema that the engine gets."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_drop_docstring)


class Malformed(Exception):
    """The text is not in the form that was asked for; the message says where, in words a model can act on.

    `reading`: what the method makes of such text all the same, if it has a rule for it (`Tools.read`).
    """

    def __init__(self, problem: str, *reading: Any) -> None:
        super().__init__(problem)
        self.reading = reading


@dataclass(frozen=True)
class Parsed:
    """The value that a reader made of a reply, and the faults that it tolerated."""

    value: Any
    repairs: tuple[Repair, ...] = ()


def is_explanation(field: str) -> bool:
    """Tell whether a field holds a reason, which no code reads."""
    return field in ("reason", "rationale", "evidence") or field.endswith("explanation")


def json_schema(schema: Schema) -> dict[str, Any]:
    """The JSON schema of a reply, with the bounds for grammars."""
    return schema if isinstance(schema, dict) else _model_schema(schema)


def object_schema(**fields: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with exactly these fields, in this order."""
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


def grammar(schema: Schema, max_tokens: int) -> dict[str, Any]:
    """The JSON schema that an engine constrains a reply of at most so many tokens to."""
    bounded = json_schema(schema)
    return bounded if max_tokens <= MAX_BOUNDED_TOKENS else without_bounds(bounded)


def without_bounds(schema: Any) -> Any:
    """A JSON schema without upper bounds of lengths; a list of one length alone keeps it. Models have none."""
    if isinstance(schema, list):
        return [without_bounds(part) for part in schema]
    if not isinstance(schema, dict) or "enum" in schema:
        return schema
    bounds = {"maxLength", "maxItems"} if schema.get("minItems") != schema.get("maxItems") else {"maxLength"}
    kept = {key: value for key, value in schema.items() if key not in bounds or isinstance(value, dict)}
    return {key: without_bounds(value) for key, value in kept.items()}


@cache
def _model_schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def all_outputs(text: str, schema: Schema) -> list[Any]:
    """The values of all complete objects in `text` that fit the schema, in order, that of `read_output` among them."""
    values = []
    for _, _, given, _ in _objects(without_thoughts(text), tolerant=True):
        fit = _Fit(without_bounds(json_schema(schema)), True)
        with suppress(Malformed, ValueError):
            values.append(_checked(fit.value(storable_value(given), fit.root), schema))
    return values


def read_output(text: str, schema: Schema, constrained: dict[str, Any] | None = None) -> Parsed:
    """The last complete object in `text`: an instance of the model, or a dict for a JSON schema. Raises Malformed.

    `constrained` is the grammar that the reply was decoded with: it is read strictly, and cut to the grammar's bounds
    where the engine knows none.
    """
    tolerant = constrained is None
    repairs: set[Repair] = set()
    try:
        value = storable_value(_last_object(without_thoughts(text), tolerant, repairs))
    except ValueError as error:
        raise Malformed(f"not valid JSON: {error}") from error
    fit = _Fit(constrained or without_bounds(json_schema(schema)), tolerant)
    value = fit.value(value, fit.root)
    return Parsed(_checked(value, schema), tuple(sorted(repairs | fit.repairs)))


def read_value(text: str, schema: dict[str, Any]) -> Any:
    """The value in a text that was decoded with a JSON schema, whose root need not be an object. Raises Malformed."""
    said = without_thoughts(text).strip()
    try:
        value = storable_value(JSON.decode(said))
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) or value is None:
        return read_output(text, schema, without_bounds(schema)).value
    return _checked(value, schema)


def _checked(value: Any, schema: Schema) -> Any:
    """The value if it fits the schema exactly: types are strict, and "true" is no boolean. Raises Malformed."""
    if not isinstance(schema, dict):
        try:
            return schema.model_validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, p['loc'])) or 'the object'}: {p['msg']}" for p in error.errors()[:3]]
            raise Malformed("; ".join(problems)) from error
    from jsonschema.exceptions import best_match  # late: a system is looked up without what reads its replies

    problem = best_match(_validator(json.dumps(schema)).iter_errors(value))
    if problem is not None:
        raise Malformed(f"{'.'.join(map(str, problem.absolute_path)) or 'the object'}: {problem.message}")
    return value


@lru_cache(maxsize=256)
def _validator(schema: str) -> Validator:
    """The validator of a schema, which is checked once: that takes as long as a hundred small values."""
    from jsonschema.validators import validator_for

    parsed = json.loads(schema)
    validator = validator_for(parsed)
    validator.check_schema(parsed)
    return validator(parsed)


def json_text(value: BaseModel) -> str:
    """A JSON object as worked examples have it."""
    return json.dumps(value.model_dump(), ensure_ascii=False)


# The object in a text


def _last_object(text: str, tolerant: bool, repairs: set[Repair]) -> Any:
    """The last complete object of a text that stands alone or, where `tolerant`, anywhere. Adds to `repairs`."""
    objects = list(_objects(text, tolerant))
    if not objects:
        if "{" in text:
            JSON.raw_decode(text, text.index("{"))  # says what is wrong with it
        raise Malformed(FORM)
    start, end, value, exact = objects[-1]
    before, after = text[:start].strip(), text[end:].strip()
    fence = FENCE_OPENS.search(before)
    if fence and after.startswith("```"):
        around: Repair | None = None if fence[1].lower() == "json" else "fence"
    elif fence and not after:
        around = "fence"
    else:
        around = "text" if before or after else None
    if around and not tolerant:
        raise Malformed(FORM)
    repairs.update([around] if around else [], [] if exact else ["syntax"])
    return value


def _objects(text: str, tolerant: bool) -> Iterator[tuple[int, int, dict[str, Any], bool]]:
    """(start, end, value, whether it is JSON as it stands) of every complete object that is in no other one."""
    at, broken = 0, 0
    while (start := text.find("{", at)) >= 0 and broken < MAX_BROKEN:
        try:
            value, at = JSON.raw_decode(text, start)
            yield start, at, value, True
            continue
        except RecursionError:
            raise ValueError(f"more than {MAX_LEVELS} levels deep") from None
        except ValueError:
            end = _closing_brace(text, start)
        repaired = _repaired(text[start:end]) if tolerant and end else None
        if repaired is not None:
            yield start, end, repaired, False
        broken += 1 if end else UNCLOSED
        at = end or start + 1


def _closing_brace(text: str, start: int) -> int:
    """Where the object ends that a brace opens; 0 where it is not closed."""
    level = 0
    for token in BRACE_OR_TEXT.finditer(text, start):
        level += {"{": 1, "}": -1}.get(token[0], 0)
        if not level:
            return token.end()
    return 0


def _repaired(text: str) -> dict[str, Any] | None:
    """The object of a text in JSON5, or in JSON with line breaks in its texts; None where it is neither."""
    try:
        value: Any = WITH_BREAKS.decode(text)
    except (ValueError, RecursionError):
        try:
            value = JSON.decode(json.dumps(pyjson5.decode(text, maxdepth=MAX_LEVELS)))
        except (pyjson5.Json5Exception, ValueError):
            return None
    return value if isinstance(value, dict) else None


# The fields of the object


class _Fit:
    """Cuts a value to a schema's bounds and, where `tolerant`, brings it nearer to it where only one reading fits.
    `repairs` says what that took."""

    def __init__(self, root: Mapping[str, Any], tolerant: bool) -> None:
        self.root, self.tolerant, self.cuts = root, tolerant, not tolerant
        self.repairs: set[Repair] = set()

    def value(self, value: Any, schema: Any) -> Any:
        """The value as the schema has it where that can be told; else as it is."""
        schema = self._resolved(schema)
        alternatives = schema.get("anyOf") or schema.get("oneOf")
        if alternatives:
            return self._alternative(value, alternatives)
        kind = schema.get("type")
        if self.tolerant:
            value = self._name(self._scalar(value, kind), schema)
            if schema.get("title") == ANY:
                value = self._counted(value, _as_kind(value, kind))
        if isinstance(value, dict) and kind == "object":
            return self._object(value, schema)
        if isinstance(value, list) and kind == "array":
            items = self._cut(value, schema.get("maxItems"), schema.get("minItems"))
            return [self.value(item, schema.get("items", {})) for item in items]
        return self._cut(value, schema.get("maxLength")) if isinstance(value, str) else value

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        for _ in range(MAX_LEVELS):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                break
            schema = self.root.get("$defs", {}).get(str(schema["$ref"]).removeprefix("#/$defs/"))
        return schema if isinstance(schema, Mapping) else {}

    def _alternative(self, value: Any, alternatives: list[Any]) -> Any:
        """The value as the first alternative that it fits, else as the first that it can be made to fit."""
        for alternative in sorted(alternatives, key=lambda candidate: not self._fits(value, candidate)):
            fit = _Fit(self.root, self.tolerant)
            fitted = fit.value(value, alternative)
            if self._fits(fitted, alternative):
                self.repairs |= fit.repairs
                return fitted
        return value

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        fields, needed = schema.get("properties", {}), schema.get("required", ())
        closed = self.tolerant and schema.get("additionalProperties") is False
        fitted: dict[str, Any] = {}
        for name, item in value.items():
            if name not in fields:
                if closed:
                    self.repairs.add("unknown_field")
                else:
                    fitted[name] = item
            elif item is not None or not self._may_be_absent(name, schema):
                fitted[name] = self.value(item, fields[name])
            else:
                self.repairs.add("null")
        reasons = [name for name in needed if is_explanation(name)] if self.tolerant else []
        for name in reasons:
            if name not in fitted or not self._fits(fitted[name], fields[name]):
                fitted[name] = ""
                self.repairs.add("explanation")
        return fitted

    def _may_be_absent(self, name: str, schema: Mapping[str, Any]) -> bool:
        """Tell whether null can only stand for a field that is left out."""
        optional = name not in schema.get("required", ()) or is_explanation(name)
        return self.tolerant and optional and not self._fits(None, schema["properties"][name])

    def _fits(self, value: Any, schema: Any) -> bool:
        definitions = self.root.get("$defs", {})
        return _validator(json.dumps({**self._resolved(schema), "$defs": definitions})).is_valid(value)

    def _cut(self, value: Any, max_length: int | None, min_length: int | None = None) -> Any:
        """As much of a text or list as a grammar with bounds allows."""
        if not self.cuts or max_length is None or max_length == min_length or len(value) < max_length:
            return value
        self.repairs.add("length")
        return value[:max_length]

    def _scalar(self, value: Any, kind: Any) -> Any:
        """The value as the only one of this type that it can mean."""
        typed = value
        if isinstance(value, str):
            if kind == "boolean":
                typed = {"true": True, "false": False}.get(value.strip().lower(), value)
            elif kind == "integer" and INTEGER.fullmatch(value):
                typed = int(value)
            elif kind == "number" and NUMBER.fullmatch(value):
                typed = float(value)
        elif isinstance(value, float) and kind == "integer" and value.is_integer():
            typed = int(value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and kind == "string":
            typed = str(value)
        return self._counted(value, typed)

    def _counted(self, value: Any, typed: Any) -> Any:
        if type(typed) is not type(value):
            self.repairs.add("type")
        return typed

    def _name(self, value: Any, schema: Mapping[str, Any]) -> Any:
        """The one of the schema's names that a text is in other capitals."""
        names = schema.get("enum") or [schema.get("const")]
        if not isinstance(value, str) or value in names:
            return value
        word = value.strip().casefold()
        meant = [name for name in names if isinstance(name, str) and name.casefold() == word]
        if len(meant) != 1:
            return value
        self.repairs.add("case")
        return meant[0]


def _as_kind(value: Any, kind: Any) -> Any:
    """Any JSON value as a text, as a list, or as an integer or None."""
    if kind == "array":
        return value if isinstance(value, list) else [] if value is None else [value]
    if kind == "integer":
        return value if type(value) is int else None
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
