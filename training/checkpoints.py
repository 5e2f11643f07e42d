"""Folders that a kill cannot spoil: sealed checkpoints, and the evaluated adapters.

transformers writes a checkpoint file by file. When all are there, `seal` writes complete.json with every file's size
and sha256; a checkpoint without it, or that differs from it, is not resumed from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.core.files import new_folder, read_json_file, write_json
from ratchet.core.runfolder import file_digest
from ratchet.inference.adapters import WEIGHTS
from ratchet.inference.weights import ALONE, WHOLE

SEAL = "complete.json"
EVALUATION = "evaluated.json"


def seal(folder: Path) -> None:
    """Write complete.json, which marks a checkpoint as complete."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SEAL)
    write_json(
        folder / SEAL, {str(path.relative_to(folder)): [path.stat().st_size, file_digest(path)] for path in files}
    )


def find_damage(folder: Path) -> str | None:
    """The damage of a checkpoint in words; None when it is complete."""
    try:
        sealed = read_json_file(folder / SEAL)
    except (OSError, ValueError):
        return "it was not finished"
    for name, (size, digest) in sealed.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size or file_digest(path) != digest:
            return f"{name} is damaged"
    return None


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every checkpoint, the newest first."""
    named = ((path.name.partition("-")[2], path) for path in folder.glob("checkpoint-*"))
    return sorted(((int(step), path) for step, path in named if step.isdecimal()), reverse=True)


def last_complete(folder: Path) -> tuple[tuple[int, Path] | None, list[str]]:
    """The newest complete checkpoint, if any, and a message for each newer one that is skipped."""
    messages: list[str] = []
    for step, path in checkpoints(folder):
        wrong = find_damage(path)
        if wrong is None:
            return (step, path), messages
        messages.append(f"{path}: {wrong}; resuming from the checkpoint before it")
    return None, messages


class EvaluatedAdapters:
    """Every adapter whose held-out loss was measured, each in folder/evaluated-<step>; with no held-out rows, those of
    the steps at which it would have been. They are small, and what chooses among them is decided later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> dict[int, Path]:
        folders = self.folder.glob("evaluated-*")
        return dict(sorted((int(path.name.removeprefix("evaluated-")), path) for path in folders))

    def best(self) -> tuple[Path, dict[str, Any]] | None:
        """(folder, {step, dev_loss}) of the lowest held-out loss, of equal ones the first; without losses, the last."""
        evaluated = [(path, read_evaluation(path)) for path in self.all().values()]

        def rank(adapter: tuple[Path, dict[str, Any]]) -> tuple[float, int]:
            step, loss = adapter[1]["step"], adapter[1]["dev_loss"]
            return (-step, 0) if loss is None else (loss, step)

        return min(evaluated, key=rank, default=None)

    def keep(self, model: Any, weights: dict[str, Any], step: int, dev_loss: float | None) -> None:
        """Keep `model`'s adapter, `weights` of it gathered from all processes."""
        target = self.folder / f"evaluated-{step}"
        if target.exists():  # the step was done before a kill
            return
        with new_folder(target) as folder:
            model.save_pretrained(folder, state_dict=weights, save_embedding_layers=False)
            if getattr(model, "is_part", False):
                use_whole_names(folder / WEIGHTS)
            write_json(folder / EVALUATION, {"step": step, "dev_loss": dev_loss})


def use_whole_names(path: Path) -> None:
    """Name an adapter's layers as in the multimodal model around the language model, which PEFT cannot save."""
    from safetensors.torch import load_file, save_file  # late: it imports torch

    weights = {name.replace(f".model.{ALONE}", f".model.{WHOLE}", 1): one for name, one in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})


def read_evaluation(folder: Path) -> dict[str, Any]:
    """{step, dev_loss} of an evaluated adapter."""
    evaluation: dict[str, Any] = read_json_file(folder / EVALUATION)
    return evaluation
