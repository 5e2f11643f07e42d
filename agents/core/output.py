"""What a model said, read as the JSON that was asked for. Nothing is repaired: it fits its schema or is malformed."""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from typing import Any

from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.text import read_json

Schema = dict[str, Any] | type[BaseModel]
FENCE = re.compile(r"```json\s*\n(.*?)```", re.DOTALL)


def _drop_docstring(schema: dict[str, Any]) -> None:
    schema.pop("description", None)


class JsonObject(BaseModel):
    """A JSON object that a model writes. Docstrings of its classes are no part of the schema that the engine gets."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_drop_docstring)


class Malformed(Exception):
    """The text is not a JSON object of the schema; the message says where, in words a model can act on."""


def json_schema(schema: Schema) -> dict[str, Any]:
    """The JSON schema that an engine constrains its output to."""
    return schema if isinstance(schema, dict) else _model_schema(schema)


@cache
def _model_schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def parse_output(text: str, schema: Schema) -> Any:
    """The object in `text`: a bare JSON object, or the only one in a ```json fence.

    Returns an instance of the model, or a dict for a JSON schema. Types are strict: "true" is no boolean.
    Raises Malformed.
    """
    source = _object_in(text)
    if not isinstance(schema, dict):
        try:
            return schema.model_validate_json(source, strict=True)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, p['loc'])) or 'the object'}: {p['msg']}" for p in error.errors()[:3]]
            raise Malformed("; ".join(problems)) from error
    try:
        value = read_json(source)
        problem = best_match(_validator(json.dumps(schema)).iter_errors(value))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not valid JSON: {error}") from error
    if problem is not None:
        raise Malformed(f"{'.'.join(map(str, problem.absolute_path)) or 'the object'}: {problem.message}")
    return value


@lru_cache(maxsize=256)
def _validator(schema: str) -> Validator:
    """What checks values against a schema, itself checked once: that takes as long as a hundred small values."""
    parsed = json.loads(schema)
    validator = validator_for(parsed)
    validator.check_schema(parsed)
    return validator(parsed)


def json_text(value: BaseModel) -> str:
    """A JSON object as worked examples have it."""
    return json.dumps(value.model_dump(), ensure_ascii=False)


def _object_in(text: str) -> str:
    text = text.strip()
    if text.startswith("{"):
        return text
    fenced = FENCE.findall(text)
    if len(fenced) != 1:
        raise Malformed("expected one JSON object, bare or in one ```json block")
    return str(fenced[0])
