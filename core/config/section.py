"""The parts of a config's sections: a strict, frozen model, paths, and what stands for a section that is left out.

A path is relative to the config's folder or, where nothing is there, to the working directory. A config keeps its paths
as they are written, in run folders and in content keys, so that a run which was started in one directory resumes from
another. The value that the code sees is the path that was found. Commands that do not use a section which is left out
run, and the first use says what is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PlainSerializer,
    ValidationInfo,
    WrapValidator,
    model_validator,
)

from ratchet.core.errors import UserError
from ratchet.core.plugins import is_path


class Section(BaseModel):
    """A part of a config. An unknown key and a number that is not finite are errors, and a section that was read does
    not change."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _off_is_a_word(cls, data: Any) -> Any:
        """YAML reads `off` without quotes as false; where "off" is one of a key's values, it is meant."""
        if not isinstance(data, dict):
            return data
        words = {name for name, field in cls.model_fields.items() if "off" in get_args(field.annotation)}
        return {name: "off" if value is False and name in words else value for name, value in data.items()}


FOLDERS = "folders"
"""Key of a validation's context: the folders that relative paths are looked for in."""
CONFIGS = "configs"
NOT_PATHS = ("", "hub")


class FoundPath(str):
    """A path that is not the text of the config: it lies beside the config and not in the working directory, or in the
    user's home."""

    written: str
    """As the config has it."""


class ScoreName(str):
    """The name of a score that is a file of one's own, as the config has it: all records of the score name it so."""

    path: str
    """Where the file was found."""


def folders_of(config: Path) -> tuple[Path, ...]:
    """The folders that a config's paths are relative to: its own and, below a folder `configs`, the one above that."""
    own = config.absolute().parent
    return (own, *(folder.parent for folder in (own, *own.parents) if folder.name == CONFIGS))


def find_path(text: str, folders: tuple[Path, ...]) -> str:
    """The path where it exists in one of the folders, else the text: of the working directory, or a hub's name. `~` is
    the user's home."""
    if text in NOT_PATHS or Path(text).is_absolute():
        return text
    if text.startswith("~"):
        return _found(text, Path(text).expanduser())
    for folder in folders:
        path = folder / text
        try:
            if not path.exists():
                continue
        except OSError:  # a text too long for a path
            return text
        if folder == Path.cwd():
            return text
        return _found(text, path)
    return text


def _found(text: str, path: Path) -> FoundPath:
    found = FoundPath(path)
    found.written = text
    return found


def written(path: str) -> str:
    """A config's path as the config has it."""
    return path.written if isinstance(path, FoundPath) else path


def _find(text: str, info: ValidationInfo) -> str:
    try:
        return find_path(text, (info.context or {}).get(FOLDERS, ()))
    except RuntimeError as error:  # ~NAME where there is no such user
        raise ValueError(f"there is no such home folder ({error})") from error


def _find_plugin(text: str, info: ValidationInfo) -> str:
    return _find(text, info) if is_path(text) else text


def find_score(text: str, folders: tuple[Path, ...] = ()) -> str:
    """A score's name; where it is a path, with the file that `find_path` finds."""
    if not is_path(text):
        return text
    name = ScoreName(text)
    name.path = str(find_path(text, folders))
    return name


def _find_score(text: str, info: ValidationInfo) -> str:
    return find_score(text, (info.context or {}).get(FOLDERS, ()))


PathText = Annotated[str, AfterValidator(_find), PlainSerializer(written, return_type=str)]
"""A path in a config."""
PluginName = Annotated[str, AfterValidator(_find_plugin), PlainSerializer(written, return_type=str)]
"""A plug-in in a config: a name, or the path of a file or folder of code."""
ScoreText = Annotated[str, AfterValidator(_find_score), PlainSerializer(str, return_type=str)]
"""A score in a config: a name, or the path of a file or folder of code."""


S = TypeVar("S", bound=BaseModel)
EXAMPLES = {
    "run": "run: runs/NAME",
    "index": "index: {path: indexes/mine, documents: [docs]}",
    "questions": "questions: {path: questions.jsonl, split: [0.7, 0.1, 0.2]}",
    "models": "models: {agent: {path: FOLDER_OR_HUB_NAME}}",
    **{f"questions.{name}": f"questions: {{{name}: {{path: {name}.jsonl}}}}" for name in ("train", "dev", "test")},
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
    """Make the value that stands for a section which the config does not have."""
    found = _CLASSES.setdefault(kind, type(f"Missing{kind.__name__}", (_Missing, kind), {})).model_construct()
    found.__dict__.clear()
    found.__dict__["missing"] = (section, where, command)
    return found


_CLASSES: dict[type[BaseModel], Any] = {}


def or_missing(missing: Section) -> WrapValidator:
    """A validator that takes null for the section that is missing, as a resolved config has it."""
    return WrapValidator(lambda value, validate: missing if value is None else validate(value))


def is_missing(section: BaseModel) -> bool:
    """Tell whether the config lacks this section."""
    return isinstance(section, _Missing)


class MissingModels(dict[str, Any]):
    """The value of `models` in a config without them."""

    def __init__(self, where: str = "", command: str = "") -> None:
        super().__init__()
        self.used = (where, command)

    def __missing__(self, name: str) -> Any:
        raise missing_error("models", name, *self.used)
