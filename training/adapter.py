"""The published adapter: PEFT's format, with a model card of our own and training.json, the facts behind it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inference.adapters import CONFIG, WEIGHTS, read_adapter
from questions.leakage import TRAINING_QUESTIONS
from ratchet.errors import UserError
from ratchet.files import disk_error, read_json_file, write_atomic, write_json
from training.card import FACTS, model_card
from training.checkpoints import publish_folder

SETTINGS = "training settings"
"""Of what an adapter is made of, the settings of its training."""
FORMER_SETTINGS: dict[str, Any] = {
    "max_grad_norm": 1.0,
    "optimizer": "adamw_torch",
    "preference": {"desirable_weight": 1.0, "min_margin": 0.0, "undesirable_weight": 1.0},
    "share_prompts": True,
    "weight_decay": 0.0,
    "weighted": {"baseline": "question_mean", "clip": 0.2, "negative_weight": 0.1},
}
"""Settings that adapters of earlier versions record, with the one value that is fixed now."""


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
    """Whether `folder` was trained from the same inputs; False where it does not exist. Other inputs are refused."""
    facts = read_facts(folder)
    if facts is None:
        return False
    made_of = facts["made_of"] | {SETTINGS: _without_former(facts["made_of"].get(SETTINGS, {}), FORMER_SETTINGS)}
    changed = [key for key, value in inputs.items() if made_of.get(key) != value]
    if changed:
        raise UserError(
            f"{folder} was trained with other {' and '.join(changed)}. Move or delete {folder.parent / 'training'} and "
            f"{folder.parent / 'adapter'} to train again"
        )
    return True


def _without_former(settings: Mapping[str, Any], former: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded settings without those that have their fixed value."""
    left: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(former.get(key), dict):
            if own := _without_former(value, former[key]):
                left[key] = own
        elif key not in former or former[key] != value:
            left[key] = value
    return left


@contextmanager
def publication(target: Path, facts: dict[str, Any], questions: dict[str, Any]) -> Iterator[Path]:
    """A folder for what is to be at `target`, where it appears when the block ends, with the facts of its training, the
    digests of its `questions` and a card: completely or not at all."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
    except OSError as error:
        raise disk_error(target, error) from error
    write_json(temporary / FACTS, facts)
    write_json(temporary / TRAINING_QUESTIONS, questions)
    write_atomic(temporary / "README.md", model_card(facts))
    publish_folder(temporary, target)


def publish(best: Path, target: Path, facts: dict[str, Any], questions: dict[str, Any]) -> None:
    """Put the adapter in folder `best` at `target`. UserError for an adapter that learnt nothing or is damaged."""
    read_adapter(best)
    with publication(target, facts, questions) as folder:
        for name in (CONFIG, WEIGHTS):
            shutil.copyfile(best / name, folder / name)
