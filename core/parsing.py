"""Config files read, overridden, and checked against a model; errors name the key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ratchet.core.errors import UserError, did_you_mean, fault_in
from ratchet.core.files import read_small_text

M = TypeVar("M", bound=BaseModel)
Key = tuple[int | str, ...]
MAX_BYTES = 10_000_000
"""The largest config file in bytes."""
MAX_NAME = 120
"""Characters of a key. Names of arms and members are parts of file names, which may have 255 bytes."""


def parse(kind: type[M], data: Any, where: str, section: str = "", context: Mapping[str, Any] | None = None) -> M:
    """Validate `data`; every problem is listed with its key, and an unknown name with the closest known one.

    `where` begins every line of the error, such as the file; `section` is the key of `data` in it.
    """
    try:
        return kind.model_validate(data, context=context)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key, annotations = _walk(kind, problem["loc"])
            full = ".".join(map(str, (section, *key) if section else key))
            lines.append(": ".join(part for part in (where, full, _text(problem, annotations)) if part))
        raise UserError("\n".join(lines)) from error


def _text(problem: ErrorDetails, annotations: list[Any]) -> str:
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        section = _section(annotations[-2]) if len(annotations) > 1 else None
        return f"unknown key{did_you_mean(str(problem['loc'][-1]), section.model_fields if section else ())}"
    got = "" if isinstance(value, dict) else f", got {value!r}"
    if value is None:
        got = ", got null; give it a value, or leave the key out for its default"
    if kind == "literal_error":
        choices = [str(choice) for choice in get_args(_plain(annotations[-1]))]
        return f"{problem['msg']}{got}{did_you_mean(str(value), choices) if choices else ''}"
    if kind == "union_tag_invalid":
        choices = [str(tag) for section in get_args(_plain(annotations[-1])) for tag in _tags(section)]
        name = str(context["discriminator"]).strip("'")
        return f"{name}: {context['tag']!r} is not known{did_you_mean(str(context['tag']), choices)}"
    if kind == "union_tag_not_found":
        choices = [str(tag) for section in get_args(_plain(annotations[-1])) for tag in _tags(section)]
        return f"{str(context['discriminator']).strip(chr(39))} is missing (known: {', '.join(sorted(choices))})"
    if kind in ("tuple_type", "list_type"):
        return f"expected a list{got}"
    return f"{context['error'] if kind == 'value_error' else problem['msg']}{got}"


def _walk(kind: type[BaseModel], loc: Key) -> tuple[Key, list[Any]]:
    """Return the key as the file has it, without the tags of unions, and the annotations on the way to it. An
    annotation is None where there is none, as for a key that is not known."""
    key: list[int | str] = []
    annotations: list[Any] = [kind]
    for part in loc:
        here = _plain(annotations[-1])
        tagged = [section for section in get_args(here) if part in _tags(section)] if _is_union(here) else []
        if tagged:
            annotations[-1] = tagged[0]
            continue
        if part == "[key]":  # the last part's name is wrong, not its value
            container = _plain(annotations[-2])
            annotations[-1] = get_args(container)[0] if get_origin(container) is dict else None
            continue
        key.append(part)
        section = _section(here)
        if section is not None:
            field = section.model_fields.get(str(part))
            annotations.append(field.annotation if field else None)
        elif get_origin(here) in (dict, tuple, list):
            arguments = get_args(here)
            annotations.append(arguments[1] if get_origin(here) is dict else arguments[0])
        else:
            annotations.append(None)
    return tuple(key), annotations


def _plain(annotation: Any) -> Any:
    """Strip Annotated, and the None of `X | None`."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if _is_union(annotation):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return _plain(kinds[0]) if len(kinds) == 1 else annotation
    return annotation


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def _section(annotation: Any) -> type[BaseModel] | None:
    plain = _plain(annotation)
    return plain if isinstance(plain, type) and issubclass(plain, BaseModel) else None


def _tags(annotation: Any) -> tuple[Any, ...]:
    """Return the values that tell a section of a union from the others: those of its first literal field."""
    section = _section(annotation)
    literals = (field.annotation for field in section.model_fields.values()) if section else ()
    return get_args(next((kind for kind in literals if get_origin(kind) is Literal), None))


def read_mapping(path: Path, what: str = "a config is a mapping of keys to values") -> dict[str, Any]:
    """Read a config file, or another mapping. Raises UserError for what is no file, no UTF-8 or no YAML, is too large,
    or is no mapping, as which `what` describes it."""
    data = _load_yaml(read_small_text(path, MAX_BYTES), str(path))
    if not isinstance(data, dict):
        raise UserError(f"{path}: {what}")
    return data


def _load_yaml(text: str, where: str) -> Any:
    try:
        data = yaml.safe_load(text)
        _check_names(data, where, "", set())
    except UserError:
        raise
    except RecursionError as error:
        raise UserError(f"{where}: sections are nested too deeply") from error
    except Exception as error:  # dates and tags that do not fit their value raise anything
        raise UserError(f"{where}: not valid YAML: {error}") from error
    return data


def _check_names(value: Any, where: str, key: str, seen: set[int]) -> None:
    """Refuse names that no file can have. What several aliases stand for is looked at once."""
    if not isinstance(value, dict | list) or id(value) in seen:
        return
    seen.add(id(value))
    for name, child in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(name, str) and not (0 < len(name) <= MAX_NAME and name.isprintable()):
            shown = f"{name[:20]!r}..." if len(name) > MAX_NAME else repr(name)
            rule = f"use 1 to {MAX_NAME} printable characters"
            fault = "" if name.isprintable() and name else f" ({fault_in(name, str.isprintable)})"
            raise UserError(f"{where}: {key}: {shown} cannot be a name{fault}; {rule}")
        _check_names(child, where, f"{key}.{name}" if key else str(name), seen)


def overridden(data: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return the data with each 'key.path=value' put in, the value in YAML. Raises UserError."""
    data = deepcopy(data)
    for override in overrides:
        _override(data, override)
    return data


def _override(data: dict[str, Any], override: str) -> None:
    key, sign, value = override.partition("=")
    if not sign:
        raise UserError(f"--set {override}: expected key.path=value")
    *parents, last = key.split(".")
    for part in parents:
        if data.get(part) is None:  # also where the file has the section's name and nothing in it
            data[part] = {}
        child = data[part]
        if not isinstance(child, dict):
            raise UserError(f"--set {override}: {part!r} holds a value, not a section")
        data = child
    data[last] = _load_yaml(value, f"--set {override}")
