"""The published adapter: PEFT's format, with a model card of our own and training.json, the facts behind it."""

from __future__ import annotations

import shutil
import sys
from itertools import count
from pathlib import Path
from typing import Any

from ratchet.core.errors import UserError
from ratchet.core.files import new_folder, read_json_file, write_atomic, write_json
from ratchet.core.locks import disk_error
from ratchet.core.runfolder import RoundFolder
from ratchet.inference.adapters import CONFIG, WEIGHTS, read_adapter
from ratchet.questions.leakage import TRAINING_QUESTIONS
from ratchet.training.card import FACTS, model_card

SETTINGS = "training settings"
"""Of what an adapter is made of, the settings of its training."""


def read_facts(folder: Path) -> dict[str, Any] | None:
    """training.json of a folder, or None where there is none."""
    try:
        facts: dict[str, Any] = read_json_file(folder / FACTS)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / FACTS}: cannot read ({error}); delete {folder} to train again") from error
    return facts


def is_made_of(folder: Path, inputs: dict[str, Any]) -> bool:
    """Whether `folder` was trained from the same inputs; False where it does not exist."""
    return read_facts(folder) is not None and not _changed(folder, inputs)


def _changed(folder: Path, inputs: dict[str, Any]) -> list[str]:
    """The inputs in which what `folder` was trained from differs."""
    facts = read_facts(folder)
    return [key for key, value in inputs.items() if facts["made_of"].get(key) != value] if facts else []


def set_aside(folder: RoundFolder, inputs: dict[str, Any]) -> None:
    """Rename the round's training and its adapter where they were trained from other inputs, and say so."""
    for path in (folder.training, folder.adapter):
        if changed := _changed(path, inputs):
            names = (path.with_name(f"{path.name}.outdated-{number}") for number in count(1))
            aside = next(name for name in names if not name.exists())  # any of them may have been deleted
            try:
                path.rename(aside)
            except OSError as error:
                raise disk_error(path, error) from error
            what = f"{path} was trained with other {' and '.join(changed)}"
            print(f"{what}; it is set aside as {aside.name}, which may be deleted", file=sys.stderr, flush=True)


def publish(best: Path, target: Path, facts: dict[str, Any], questions: dict[str, Any]) -> None:
    """Put the adapter in folder `best` at `target`, with the facts of its training, the digests of its `questions` and
    a card: completely or not at all. UserError for an adapter that learnt nothing or is damaged."""
    read_adapter(best)
    with new_folder(target) as folder:
        for name in (CONFIG, WEIGHTS):
            shutil.copyfile(best / name, folder / name)
        write_json(folder / FACTS, facts)
        write_json(folder / TRAINING_QUESTIONS, questions)
        write_atomic(folder / "README.md", model_card(facts))
