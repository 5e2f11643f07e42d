"""Folders that a kill cannot spoil: sealed checkpoints, and the best adapter so far.

transformers writes a checkpoint file by file. When all are there, `seal` writes complete.json with every file's size
and sha256; a checkpoint without it, or that differs from it, is not resumed from.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ratchet.files import disk_error, write_json
from ratchet.runfolder import file_digest

SEAL = "complete.json"


def seal(folder: Path) -> None:
    """Write complete.json, which marks a checkpoint as complete."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SEAL)
    write_json(
        folder / SEAL, {str(path.relative_to(folder)): [path.stat().st_size, file_digest(path)] for path in files}
    )


def find_damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None when it is complete."""
    try:
        sealed = json.loads((folder / SEAL).read_bytes())
    except (OSError, ValueError):
        return "it was not finished"
    for name, (size, digest) in sealed.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size or file_digest(path) != digest:
            return f"{name} is damaged"
    return None


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every checkpoint, the newest first."""
    found = ((path.name.partition("-")[2], path) for path in folder.glob("checkpoint-*"))
    return sorted(((int(step), path) for step, path in found if step.isdecimal()), reverse=True)


def last_complete(folder: Path) -> tuple[tuple[int, Path] | None, list[str]]:
    """The newest complete checkpoint, if any, and a message for each newer one that is skipped."""
    messages: list[str] = []
    for step, path in checkpoints(folder):
        wrong = find_damage(path)
        if wrong is None:
            return (step, path), messages
        messages.append(f"{path}: {wrong}; resuming from the checkpoint before it")
    return None, messages


def publish_folder(temporary: Path, target: Path) -> None:
    """Make `temporary` durable and rename it to `target`, which must not exist: readers see all of it or nothing."""
    try:
        for path in [*temporary.iterdir(), temporary]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        temporary.rename(target)
    except OSError as error:
        raise disk_error(target, error) from error


class BestAdapter:
    """The adapter with the lowest dev loss, in folder/best-<step>; with no dev rows, the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def current(self) -> tuple[Path, dict[str, Any]] | None:
        """(folder, {step, dev_loss}) of the best so far. Two can be there after a kill between rename and clean-up."""
        found = []
        for path in self.folder.glob("best-*"):
            facts = json.loads((path / "best.json").read_bytes())
            loss = facts["dev_loss"]
            found.append(((-facts["step"], 0) if loss is None else (loss, facts["step"]), path, facts))
        return min(found, key=lambda item: item[0])[1:] if found else None

    def offer(self, model: Any, weights: dict[str, Any], step: int, dev_loss: float | None) -> None:
        """Keep `model`'s adapter, `weights` of it gathered from all processes, if it is better than the best so far."""
        best = self.current()
        if best and (best[1]["step"] == step or (dev_loss is not None and best[1]["dev_loss"] <= dev_loss)):
            return
        temporary, target = self.folder / f".best-{step}", self.folder / f"best-{step}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            model.save_pretrained(temporary, state_dict=weights, save_embedding_layers=False)
        except OSError as error:
            raise disk_error(target, error) from error
        (temporary / "README.md").unlink(missing_ok=True)
        write_json(temporary / "best.json", {"step": step, "dev_loss": dev_loss})
        publish_folder(temporary, target)
        for path in self.folder.glob("best-*"):
            if path != target:
                shutil.rmtree(path)
