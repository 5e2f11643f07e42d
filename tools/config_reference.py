"""python -m tools.config_reference: write docs/reference/config.md from the sections' docstrings."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from ratchet.core.config import Config, Section
from ratchet.core.files import write_atomic
from ratchet.core.plugins import known_plugins, load_plugin

PAGE = Path(__file__).parents[1] / "docs/reference/config.md"
HEAD = """\
# Config

<!-- Written by `python -m tools.config_reference` from the docstrings in core/config/ and agents/. Do not edit. -->

A config is one YAML file, which every command reads with `--config`; `--set training.epochs=2` overrides one key. An
unknown key is an error that names the closest known one. The defaults are mRAG's settings (Salemi et al. 2025, arXiv
2506.10844, appendix D).

The column `value` has the default, which is bold among choices, or the type of a key that is `null` or empty by
default.

A relative path is looked for in the config's folder, below a folder `configs` also in the folder that holds `configs`,
and then in the working directory, where new paths are made. Run folders keep paths as written, so a run resumes from
any directory with `--config /path/to/config.yaml`.
"""
SYSTEMS = """\
## Settings of systems

`system.settings` has these keys, by `system.name`. [Choosing](../guides/choosing.md#the-systems) lists the systems.
"""
WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any value"}
LIMITS = {Gt: (">", "gt"), Ge: ("≥", "ge"), Lt: ("<", "lt"), Le: ("≤", "le")}
"""Those that are shown; > 0 and ≥ 0 are not."""
Places = dict[type[Section], list[str]]
Row = tuple[str, str, str]


def reference() -> str:
    """Return the page as Markdown."""
    return "\n".join([HEAD, *_tables("", Config, "##"), SYSTEMS, *_systems()])


def _tables(key: str, root: type[Section], heading: str) -> Iterator[str]:
    """A table for each section. In that of the root, sections link to their headings; elsewhere they have no row. Of
    several sections that a key may have, a row that they share is in the first table."""
    places: Places = {}
    _collect(key, root, places)
    headings = {place: ", ".join(f"`{place}`" for place in several) for several in places.values() for place in several}
    docs = _field_docs(root)
    shown: set[tuple[str, Row]] = set()
    for section, keys in places.items():
        rows = [row for row in _rows(section) if (keys[0], row) not in shown]
        shown.update((keys[0], row) for row in rows)
        above = next((kind for kind in section.__mro__[1:] if kind in places), None)
        if above is not None:
            rows = [row for row in rows if row[0].strip("`") in section.__annotations__]
        if section is root:
            rows = []
            for name, field in root.model_fields.items():
                below = _sections(field.annotation)
                links = [f"[`{name}`](#{_anchor(headings[name + suffix])})" for suffix, _ in below]
                rows.append((links[0], "", docs[name]) if links else (f"`{name}`", _value(field), docs[name]))
        else:
            yield f"{heading} {headings[keys[0]]}\n"
            about = _joined(section.__doc__)
            if above is not None:
                about += f" It has the keys of {headings[places[above][0]]}, and:"
            if about not in docs.values():
                yield f"{about}\n"
        if rows:
            yield _table(rows)


def _systems() -> Iterator[str]:
    """The settings that systems share, in one table, and then those of each system alone."""
    rows = {
        name: list(_rows(load_plugin("systems", name, (), "system.name").declared("SYSTEM").settings, inside=True))
        for name in known_plugins("systems")
    }
    values: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, own in rows.items():
        for key, value, meaning in own:
            values.setdefault((key, meaning), {}).setdefault(value, []).append(f"`{name}`")
    shared = {setting: by_value for setting, by_value in values.items() if sum(map(len, by_value.values())) > 1}
    yield _table(
        [
            (key, "; ".join(f"{value}: {', '.join(names)}" for value, names in by_value.items()), meaning)
            for (key, meaning), by_value in sorted(shared.items())
        ]
    )
    for name, own in rows.items():
        if alone := [row for row in own if (row[0], row[2]) not in shared]:
            yield f"### `{name}`\n\n{_table(alone)}"


def _rows(section: type[Section], inside: bool = False, prefix: str = "") -> Iterator[Row]:
    """(key, value, meaning) of each field. `inside`: also of the fields of the sections in it."""
    docs = _field_docs(section)
    for name, field in section.model_fields.items():
        below = [kind for _, kind in _sections(field.annotation) if kind is not section]
        if not below:
            yield f"`{prefix}{name}`", _value(field), docs.get(name, "")
        for kind in below if inside else ():
            yield from _rows(kind, inside, f"{prefix}{name}.")


def _table(rows: Sequence[Row]) -> str:
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join(["| key | value | meaning |", "|---|---|---|", *lines]) + "\n"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _collect(key: str, section: type[Section], places: Places) -> None:
    """Every section below this one, with the keys where it stands."""
    if section in places:
        if not any(key.startswith(f"{known}.") for known in places[section]):
            places[section].append(key)
        return
    places[section] = [key]
    for name, field in section.model_fields.items():
        for suffix, below in _sections(field.annotation):
            _collect(f"{key}.{name}{suffix}".lstrip("."), below, places)


def _sections(annotation: Any) -> Iterator[tuple[str, type[Section]]]:
    """(what follows the key, section) of each section in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield "", annotation
    for argument in get_args(annotation) if get_origin(annotation) is not Literal else ():
        for suffix, section in _sections(argument):
            yield (f".NAME{suffix}" if get_origin(annotation) is dict else suffix), section


def _value(field: FieldInfo) -> str:
    """The default, where there is one, or else the type; then limits, and whether it may be null."""
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    choices = _choices(field.annotation)
    if isinstance(default, Section):
        default = None
    several = isinstance(default, tuple | dict)
    if choices and isinstance(default, tuple) and set(choices) == set(default):
        words = f"all of {', '.join(f'`{choice}`' for choice in choices)}"
    elif choices and not several:
        words = ", ".join(f"**`{choice}`**" if choice == default else f"`{choice}`" for choice in choices)
    elif default in (None, "", (), {}):
        words = _words(field.annotation)
    else:
        words = f"`{json.dumps(default)}`{f', a {_words(field.annotation)}' if choices else ''}"
    limits = [
        f"{sign} {limit:g}"
        for constraint in field.metadata
        for kind, (sign, name) in LIMITS.items()
        if isinstance(constraint, kind) and ((limit := getattr(constraint, name)) or kind is Lt)
    ]
    null = ["or `null`"] if NoneType in get_args(field.annotation) and default is not None else []
    required = ["required"] if field.is_required() else []
    return ", ".join([words, *limits, *null, *required])


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a type that has no others but null, and of a list of these."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    kinds = [kind for kind in get_args(annotation) if kind not in (NoneType, Ellipsis)]
    if get_origin(annotation) in (Annotated, Union, UnionType, tuple) and len(set(map(str, kinds))) == 1:
        return _choices(kinds[0])
    return ()


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in WORDS:
        return WORDS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "this section"
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is Annotated:
        return _words(arguments[0])
    if origin in (Union, UnionType) and {bool, str} <= set(arguments):
        return "values"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(kind) for kind in arguments if kind is not NoneType))
    if origin is dict:
        return f"mapping to {_words(arguments[1])}"
    if origin is tuple and arguments[-1] is not Ellipsis and len(set(arguments)) > 1:
        return f"list of {', '.join(map(_words, arguments))}"
    if origin in (tuple, list):
        return f"list of {_words(arguments[0])}"
    raise TypeError(annotation)


def _field_docs(section: type[Section]) -> dict[str, str]:
    """The text below each field of a section, and of the sections that it is derived from."""
    docs: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if not issubclass(kind, Section) or kind is Section:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in zip(definition.body, definition.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                    docs[name] = _joined(doc)
    return docs


def _joined(text: str | None) -> str:
    return " ".join((text or "").split())


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tools.config_reference", description=__doc__).parse_args()
    write_atomic(PAGE, reference())
    print(PAGE)
