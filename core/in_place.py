"""Folders that must not be moved away while a command writes into them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ratchet.core.errors import UserError

_IN_PLACE: list[Path] = []
"""The folders of `kept_in_place`."""


@contextlib.contextmanager
def kept_in_place(folder: Path) -> Iterator[None]:
    """While the block runs, no write makes the folder again where it was moved away or deleted: that is a UserError, at
    the latest at the end of the block. A folder that does not exist yet may be made."""
    folder = folder.absolute()
    if not folder.exists():
        yield
        return
    _IN_PLACE.append(folder)
    try:
        yield
        if not folder.exists():
            raise moved_away(folder)
    finally:
        _IN_PLACE.remove(folder)


def check_in_place(path: Path) -> None:
    """UserError where `path` lies in a folder of `kept_in_place` that is gone."""
    for folder in _IN_PLACE:
        if folder in path.absolute().parents and not folder.exists():
            raise moved_away(folder)


def moved_away(path: Path) -> UserError:
    """The error of a file or folder that is no longer there; it names the highest folder that is missing."""
    missing = next((parent for parent in reversed(path.parents) if not parent.exists()), path)
    return UserError(
        f"{missing}: was moved away or deleted while this command wrote into it. What was finished before went with "
        "it: move it back, and run the same command again"
    )


def is_there(path: Path) -> UserError:
    """The error of a file or folder that another process has written, before this one or in the meantime."""
    return UserError(
        f"{path}: is there already. If another process has finished it, run the same command again; else delete it"
    )
