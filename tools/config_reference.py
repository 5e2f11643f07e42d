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

from ratchet.agents.core.system import known_systems
from ratchet.core.config import Config, Section
from ratchet.core.files import write_atomic
from ratchet.core.plugins import load_plugin

PAGE = Path(__file__).parents[1] / "docs/reference/config.md"
HEAD = """\
# Config

<!-- Written by `python -m tools.config_reference` from the docstrings in core/config/ and agents/. Do not edit. -->

A config is one YAML file, which every command reads with `--config`. `--set training.epochs=2` overrides one key. An
unknown key or name is an error that names the closest known one. The defaults are the settings of mRAG (Salemi et al.
2025, arXiv 2506.10844, appendix D). Where the type below says so, a key may be `null`. If its default is empty below,
`null` is the default: `--set training.epochs=null` takes back what the file sets.

A relative path is looked for in the config's folder first; below a folder `configs`, in the folder that holds
`configs` next; and then in the working directory, where a path that exists nowhere yet is made. Run folders keep paths
as they are written, so a run that was started beside its config resumes from any directory with
`--config /path/to/config.yaml`.

In the headings below, `NAME` stands for a name that you choose. A section that occurs in several places has one table.
The settings of each system are [at the end](#settings-of-systems).
"""
TASKS = {
    "use another model": ["models.NAME"],
    "let the model think before it answers": ["models.NAME.thoughts"],
    "start vLLM servers": ["models.NAME.serve"],
    "search documents of your own": ["index", "index.encoder"],
    "search web services or tool servers": ["sources.NAME"],
    "use questions of your own, or a benchmark": ["questions", "questions.train"],
    "choose the agents, and what each role may write": ["system", "system.roles.NAME", "system.settings"],
    "sample more often, or hotter": ["sampling"],
    "decide which trajectories are good, and how many are kept": ["rewards", "rewards.select"],
    "change how the judge scores": ["rewards"],
    "train longer, or with another objective": ["training", "training.lora"],
    "compare with other systems": ["evaluation", "evaluation.baselines.NAME"],
    "train for several rounds": ["rounds"],
    "evaluate many checkpoints": ["sweep"],
    "write questions from the corpus": ["generation"],
}
"""The index of the page: what somebody may want to do, and the sections that do it."""
SYSTEMS = """\
## Settings of systems

`system.settings` has these keys, by `system.name`.
"""
WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any value"}
LIMITS = {Gt: (">", "gt"), Ge: ("≥", "ge"), Lt: ("<", "lt"), Le: ("≤", "le")}
Places = dict[type[Section], list[str]]


def reference() -> str:
    """Return the page as Markdown."""
    tables = list(_tables("", Config, "##"))
    parts = [HEAD, _index(tables), *tables, SYSTEMS]
    for name in known_systems():
        plugin = load_plugin("systems", name, (), "system.name")
        spec = plugin.declared("SYSTEM")
        about = plugin.module.__doc__ if hasattr(plugin.module, "SYSTEM") else spec.solve.__doc__
        parts.append(f"### `{name}`\n\n{_first_sentence(about)}\n")
        settings = spec.settings
        parts += _tables("", settings, "####") if settings.model_fields else ["It has no settings.\n"]
    return "\n".join(parts)


def _index(tables: Sequence[str]) -> str:
    """A table of tasks, whose sections link to their headings. An unknown section is a `KeyError`."""
    headings = [line.removeprefix("## ") for text in tables for line in text.splitlines() if line.startswith("## ")]
    anchors = {
        key: re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in headings
        for key in re.findall(r"`(.*?)`", heading)
    }
    anchors["system.settings"] = "settings-of-systems"
    rows = [f"| {task} | {', '.join(f'[`{key}`](#{anchors[key]})' for key in keys)} |" for task, keys in TASKS.items()]
    return "\n".join(["| to | sections |", "|---|---|", *rows]) + "\n"


def _tables(key: str, root: type[Section], heading: str) -> Iterator[str]:
    places: Places = {}
    _collect(key, root, places)
    for section, keys in places.items():
        if keys != [""]:
            yield f"{heading} {', '.join(f'`{key}`' for key in keys)}\n\n{_joined(section.__doc__)}\n"
        docs = _field_docs(section)
        rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
        for name, field in section.model_fields.items():
            cells = (f"`{name}`", _type(field), _default(field), docs.get(name, ""))
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        yield "\n".join(rows) + "\n"


def _collect(key: str, section: type[Section], places: Places) -> None:
    if section in places:
        if not any(key.startswith(f"{known}.") for known in places[section]):
            places[section].append(key)
        return
    places[section] = [key]
    for name, field in section.model_fields.items():
        for suffix, below in _sections(field.annotation):
            _collect(f"{key}.{name}{suffix}".lstrip("."), below, places)


def _sections(annotation: Any) -> Iterator[tuple[str, type[Section]]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield "", annotation
    for argument in get_args(annotation) if get_origin(annotation) is not Literal else ():
        for suffix, section in _sections(argument):
            yield (f".NAME{suffix}" if get_origin(annotation) is dict else suffix), section


def _type(field: FieldInfo) -> str:
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for kind, (sign, name) in LIMITS.items()
        if isinstance(limit, kind)
    ]
    null = "; or `null`" if NoneType in get_args(field.annotation) else ""
    return " ".join([_words(field.annotation), ", ".join(limits)]).strip() + null


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in WORDS:
        return WORDS[annotation]
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is Annotated:
        return _words(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(kind) for kind in arguments if kind is not NoneType))
    if origin is dict:
        return f"mapping of names to: {_words(arguments[1])}"
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of: {_words(arguments[0])}"
    if origin is tuple:
        return f"list of {len(arguments)}: {', '.join(map(_words, arguments))}"
    return "section"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Section):
        value = value.model_dump(mode="json", exclude_unset=True)
        return f"`{json.dumps(value)}`" if value else ""
    return "" if value is None else f"`{json.dumps(value)}`"


def _field_docs(section: type[Section]) -> dict[str, str]:
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


def _first_sentence(text: str | None) -> str:
    """Return a docstring up to the first full stop that is followed by a line's end or a capital letter."""
    paragraph = _joined((text or "").strip().split("\n\n")[0])
    return re.split(r"(?<=[a-z0-9)]\.) (?=[A-Z])", paragraph, maxsplit=1)[0]


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tools.config_reference", description=__doc__).parse_args()
    write_atomic(PAGE, reference())
    print(PAGE)
