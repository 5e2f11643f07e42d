"""The published adapter: PEFT's format, with a model card of our own and training.json, the facts behind it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from inference.adapters import CONFIG, WEIGHTS, read_adapter
from questions.guard import TRAINING_QUESTIONS
from ratchet.errors import UserError
from ratchet.files import disk_error, write_atomic, write_json
from training.checkpoints import publish_folder

FACTS = "training.json"


def read_facts(folder: Path) -> dict[str, Any] | None:
    """training.json of a folder, or None where there is none."""
    try:
        facts: dict[str, Any] = json.loads((folder / FACTS).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / FACTS}: cannot read ({error}); delete {folder} to train again") from error
    return facts


def check_same(folder: Path, made_of: dict[str, Any]) -> bool:
    """Whether `folder` was made of the same things; False where it is not there. Anything else is refused."""
    facts = read_facts(folder)
    if facts is None:
        return False
    changed = [key for key, value in made_of.items() if facts["made_of"].get(key) != value]
    if changed:
        raise UserError(
            f"{folder} was trained with other {' and '.join(changed)}. Move or delete {folder.parent / 'training'} and "
            f"{folder.parent / 'adapter'} to train again"
        )
    return True


def publish(best: Path, target: Path, facts: dict[str, Any], questions: dict[str, Any]) -> None:
    """Put the adapter in folder `best` at `target`, whole or not at all. `questions`: what guard.py keeps of them.

    UserError for an adapter that learnt nothing or is damaged.
    """
    read_adapter(best)
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        for name in (CONFIG, WEIGHTS):
            shutil.copyfile(best / name, temporary / name)
    except OSError as error:
        raise disk_error(target, error) from error
    write_json(temporary / FACTS, facts)
    write_json(temporary / TRAINING_QUESTIONS, questions)
    write_atomic(temporary / "README.md", model_card(facts))
    publish_folder(temporary, target)


def _start(facts: dict[str, Any]) -> str:
    """What the training began with."""
    start = facts["made_of"].get("starting adapter")
    return f"the adapter that it began with (digest {start})" if start else "the base model"


def model_card(facts: dict[str, Any]) -> str:
    """A card for people and for the Hub: what the adapter is, what made it, what it is not."""
    front = yaml.safe_dump(
        {
            "base_model": facts["base_model"],
            "library_name": "peft",
            "pipeline_tag": "text-generation",
            "tags": ["lora", "self-training", "retrieval-augmented-generation", "ratchet"],
        },
        sort_keys=False,
    )
    training, rows = facts["training"], facts["rows"]
    lora = training["lora"]
    dev = facts["dev_loss"]
    if dev is None:
        chosen = f"The adapter is the one after the last step ({facts['step']}): no rows were held out."
    else:
        chosen = (
            f"The adapter is the one after step {facts['step']} of {facts['steps']}, with the lowest loss on "
            f"{rows['dev']} held-out rows: {dev:.4f}, where {_start(facts)} has {facts['dev_loss_before']:.4f}."
        )
    roles = "\n".join(f"| {role} | {count} |" for role, count in sorted(rows["roles"].items()))
    left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(rows["left_out"].items())) or "none"
    retokenised = (
        f"\n{rows['retokenised']} rows were re-tokenised from text, so their ids may differ from those sampled.\n"
        if rows["retokenised"]
        else ""
    )
    return f"""---
{front}---

# {facts["run"]}: LoRA adapter for {", ".join(f"`{name}`" for name in facts["systems"])}

One LoRA adapter for all trainable roles of a multi-agent system, trained by Ratchet on the
system's own best trajectories: sampled, rewarded, and the best ones kept. The loss is on tokens that the model itself
sampled in parsed actions, and on nothing else.

Base model: `{facts["base_model"]}`{f" at revision {facts['revision']}" if facts["revision"] else ""}

## Data

{rows["train"]} rows of {rows["tokens"]} tokens, {rows["loss_tokens"]} of them learnt; {rows["dev"]} rows held out.
Conversations of trainable roles that gave no row: {left_out}.
{retokenised}
| role | rows |
|---|---|
{roles}

## Training

| | |
|---|---|
| LoRA | r={lora["r"]}, alpha={lora["alpha"]}, dropout={lora["dropout"]}, on {lora["targets"]} |
| optimiser | {training["optimizer"]}, weight decay {training["weight_decay"]} |
| learning rate | {training["learning_rate"]} |
| schedule | {facts["warmup_steps"]} steps of linear warm-up, then linear to 0 at step {facts["steps"]} |
| batch | {facts["batch"]} rows; gradients clipped at {training["max_grad_norm"]} |
| longest row | {training["max_length"]} tokens; longer ones are left out, never cut |
| backend | {training["backend"]} |
| seed | {facts["made_of"]["seed"]} |
| began as | {_start(facts)} |

{chosen}

## How it was made

Run `{facts["run"]}`, round {facts["round"]}; code {facts["code"] or "of an unknown version"}.
Digests of rows and base model are in `{FACTS}` beside this card, and those of the training questions and their gold
documents in `{TRAINING_QUESTIONS}`: evaluating the adapter on any of them is refused.

## Limits

It was taught the prompts and formats of this system and is of use inside it, with roles marked as trainable; other
prompts see a model that was changed for no purpose of theirs. It repeats what its rewards preferred, their mistakes
included, and what the base model could already do at times: self-training adds no knowledge. The licence and the
limits of the base model hold for it too.
"""
