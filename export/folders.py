"""An exported folder: it appears when it is complete, and its record says what it was made of.

The same command finishes an interrupted export. What is complete is not written again, and a folder that was made of
something else is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ratchet.core.errors import UserError
from ratchet.core.files import new_folder, read_record, write_atomic, write_record
from ratchet.core.records import Record

RECORD = "export.json"
CARD = "README.md"


class Export(Record):
    """The record of an exported folder, in export.json."""

    inputs: dict[str, Any]
    anyway: str = ""
    """The inputs that were out of date, where the user went on with --anyway."""


def read_export(folder: Path) -> Export | None:
    """The record of an exported folder; None where there is none. UserError for a damaged one."""
    return read_record(folder / RECORD, Export, f"delete {folder} to export again")


def is_exported(folder: Path, inputs: dict[str, Any]) -> bool:
    """True where the folder is there; UserError where it was made of something else."""
    found = read_export(folder)
    if found is None:
        if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
            raise UserError(f"{folder}: exists and is no export of ours; choose another --out, or remove it")
        return False
    keys = dict.fromkeys([*inputs, *found.inputs])
    if changed := [key for key in keys if found.inputs.get(key) != inputs.get(key)]:
        raise UserError(f"{folder} was exported with other {' and '.join(changed)}; delete it to export again")
    return True


def export_folder(folder: Path, inputs: dict[str, Any], fill: Callable[[Path], None]) -> bool:
    """Write the folder with `fill`, which gets an empty folder; False where it is complete already."""
    if is_exported(folder, inputs):
        return False
    with new_folder(folder) as temporary:
        fill(temporary)
        write_record(temporary / RECORD, Export(inputs=inputs))
    return True


def note_anyway(folder: Path, anyway: str) -> None:
    """Have the record of an exported folder say what was out of date of its inputs; empty: nothing."""
    record = read_export(folder)
    if record is not None and record.anyway != anyway:
        write_record(folder / RECORD, record.model_copy(update={"anyway": anyway}))


def finish_export(folder: Path, text: str) -> None:
    """Write the folder's card, unless it says this already: an evaluation may have come after the export. Remove what a
    killed export has left in the folder."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    card = folder / CARD
    if not card.exists() or card.read_text(encoding="utf-8") != text:
        write_atomic(card, text)
