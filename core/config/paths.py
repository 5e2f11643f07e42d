"""Paths in a config: relative to the config's folder or, where nothing is there, to the working directory.

A config keeps its paths as they are written, in run folders and in content keys, so that a run which was started in one
directory resumes from another. The value that the code sees is the path that was found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, PlainSerializer, ValidationInfo

from ratchet.core.plugins import is_path

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
