"""Sections that a config leaves out: commands that do not use them run, and the first use says what is missing."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

from ratchet.core.errors import UserError

S = TypeVar("S", bound=BaseModel)
EXAMPLES = {
    "index": "index: {path: indexes/mine, documents: [docs]}",
    "questions": "questions: {path: questions.jsonl, split: [0.7, 0.1, 0.2]}",
    "models": "models: {agent: {path: FOLDER_OR_HUB_NAME}}",
}
"""For the message of a missing section: how it is written."""


def missing_error(section: str, key: str, where: str = "", command: str = "") -> UserError:
    """`key` of a section is needed that the config does not have. `where`: the config's file."""
    needed = f"{section}.{key}" if key else section
    return UserError(
        f"{f'{where}: ' if where else ''}{section} is missing: {f'`{command}`' if command else 'this'} needs {needed}; "
        f"add `{EXAMPLES[section]}`"
    )


class _Missing(BaseModel):
    """Mixed into the class of a section. Every field of it raises UserError."""

    def __getattr__(self, name: str) -> Any:
        if name in type(self).model_fields:
            section, where, command = self.__dict__["missing"]
            raise missing_error(section, name, where, command)
        raise AttributeError(name)


def missing_section(kind: type[S], section: str, where: str = "", command: str = "") -> S:
    """What stands for a section that the config does not have."""
    found = _CLASSES.setdefault(kind, type(f"Missing{kind.__name__}", (_Missing, kind), {})).model_construct()
    found.__dict__.clear()
    found.__dict__["missing"] = (section, where, command)
    return found


_CLASSES: dict[type[BaseModel], Any] = {}


def is_missing(section: BaseModel) -> bool:
    """Whether the config does not have this section."""
    return isinstance(section, _Missing)


class MissingModels(dict[str, Any]):
    """What stands for `models` in a config without them."""

    def __init__(self, where: str = "", command: str = "") -> None:
        super().__init__()
        self.used = (where, command)

    def __missing__(self, name: str) -> Any:
        raise missing_error("models", name, *self.used)
