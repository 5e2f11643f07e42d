"""The adapter's model card: what it is, how to load it, a prompt that it knows, what made it, what it is not."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from agents.core.dialogues import RunContext
from agents.core.system import load_system, run_episode
from inference.chat import ChatFormat, load_tokenizer
from inference.scripted import ScriptedEngine
from questions.benchmark import load_benchmark
from questions.leakage import TRAINING_QUESTIONS
from questions.load import load_questions
from ratchet.config import Config, ModelConfig, load_members
from ratchet.records import Passage, Question

FACTS = "training.json"
RESULTS_BEGIN, RESULTS_END = "<!-- results: begin -->", "<!-- results: end -->"
"""Where the evaluation writes its results (`evaluation/card.py`)."""
UNKNOWN = "unknown"
INVENTED = "Which engineer built the harbour of Velm?"
PASSAGE = Passage(
    id="velm:0", document_id="velm", title="Velm", text="The harbour of Velm was built by the engineer Ada Torrin."
)


def describe_base(model: ModelConfig, digest: str) -> dict[str, str]:
    """The base model for the card: by its hub id, or a local folder by its name and its content's digest."""
    folder = Path(model.path)
    if not folder.is_dir():
        return {"name": model.path, "note": "", "licence": UNKNOWN}
    note = f"a local folder, content digest {digest}: put its path here"
    return {"name": folder.resolve().name, "note": note, "licence": _card_licence(folder / "README.md")}


def _card_licence(card: Path) -> str:
    """The licence in a model card's front matter; 'unknown' without one that can be read."""
    try:
        start, front, _ = card.read_text(encoding="utf-8").split("---\n", 2)
        licence = yaml.safe_load(front).get("license") if not start.strip() else None
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return UNKNOWN
    return licence if isinstance(licence, str) and licence.isprintable() else UNKNOWN


def data_licences(config: Config) -> dict[str, str]:
    """By training question set, its licence: its benchmark's, or 'unknown'."""
    names = {member.questions.train.benchmark for member in load_members(config).values()}
    return {
        f"training questions, {name}" if name else "training questions, own file": (
            load_benchmark(name).licence if name else UNKNOWN
        )
        for name in sorted(names, key=str)
    }


def example_prompt(config: Config) -> dict[str, str]:
    """The first prompt of a trainable role, in the model's chat format, for an invented question and passage.

    No text of a data set is in it: the config's own worked examples are left out. Empty where the system does not ask a
    trainable role without its sources.
    """
    member = next(iter(load_members(config).values()))
    model = config.models[config.training.model]
    try:
        return asyncio.run(_first_prompt(member, model))
    except Exception as error:  # a card must never cost a finished training
        logging.getLogger(__name__).warning("the model card has no example of a prompt: %r", error)
        return {}


async def _first_prompt(config: Config, model: ModelConfig) -> dict[str, str]:
    chat = ChatFormat.from_tokenizer(load_tokenizer(model.path, model.revision), model.path)
    roles = {name: role.model_copy(update={"examples": ()}) for name, role in config.system.roles.items()}
    system = load_system(config.system.model_copy(update={"roles": roles}))
    engines = {name: ScriptedEngine(chat, lambda prompt, params, messages: "") for name in system.models}
    asked = load_questions(config.questions.train, config.seed)[0]
    question = Question(id="example", text=INVENTED, form=asked.form, labels=asked.labels)
    context = RunContext(temperature=0.0, frozen_temperature=0.0, top_p=1.0, adapter=None, policy="base")
    found = await run_episode(question, system, engines, _OnePassage(), context, key="example", sample=0, seed=0)
    for conversation in found.conversations:
        if conversation.trainable:
            end = next((span.start for span in conversation.spans if span.sampled), len(conversation.ids))
            return {"role": conversation.role, "text": chat.decode(conversation.ids[:end])}
    return {}


class _OnePassage:
    """An index that has one invented passage for every query."""

    digest = "example"

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        return [PASSAGE][offset : offset + k]

    def search_batch(self, queries: Sequence[str], k: int, offset: int = 0) -> list[list[Passage]]:
        return [self.search(query, k, offset) for query in queries]


def _describe_base(facts: dict[str, Any]) -> str:
    base, revision = facts["base"], facts["revision"]
    note = f", {base['note'].partition(':')[0]}" if base["note"] else ""
    return f"`{base['name']}`{note}{f' at revision {revision}' if revision else ''}"


def _prompt_section(prompt: Mapping[str, str]) -> str:
    if not prompt:
        return ""
    fence = "`" * (max((len(run) for run in re.findall("`+", prompt["text"])), default=0) + 3)
    return f"""
The first prompt of the role `{prompt["role"]}`, for an invented question:

{fence}text
{prompt["text"]}
{fence}
"""


def _table_rows(found: Mapping[str, str]) -> str:
    return "\n".join(f"| {name} | {value} |" for name, value in found.items())


def _describe_lessons(objective: str) -> str:
    """What the training learnt from."""
    if objective == "sft":
        return "system's own best trajectories: sampled, rewarded, and the best ones kept."
    return f"system's own trajectories, better and worse ones by reward, with the objective `{objective}`."


def _describe_start(facts: dict[str, Any]) -> str:
    """What the training started from."""
    start = facts["made_of"].get("starting adapter")
    return f"the adapter that it started from (digest {start})" if start else "the base model"


def model_card(facts: dict[str, Any]) -> str:
    """A card for people and for the Hub: what the adapter is, what made it, what it is not."""
    front = yaml.safe_dump(
        {
            "base_model": facts["base"]["name"],
            "license": facts["base"]["licence"],
            "library_name": "peft",
            "pipeline_tag": "text-generation",
            "tags": ["lora", "self-training", "retrieval-augmented-generation", "ratchet"],
        },
        sort_keys=False,
    )
    training, rows, base = facts["training"], facts["rows"], facts["base"]
    revision = f', revision="{facts["revision"]}"' if facts["revision"] else ""
    lora = training["lora"]
    dev = facts["dev_loss"]
    if dev is None:
        chosen = f"The adapter is the one after the last step ({facts['step']}): no rows were held out."
    else:
        chosen = (
            f"The adapter is the one after step {facts['step']} of {facts['steps']}, with the lowest loss on "
            f"{rows['dev']} held-out rows: {dev:.4f}, where {_describe_start(facts)} has "
            f"{facts['dev_loss_before']:.4f}."
        )
    roles = "\n".join(f"| {role} | {count} |" for role, count in sorted(rows["roles"].items()))
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(rows["left_out"].items())) or "none"
    retokenised = (
        f"\n{rows['retokenised']} rows were re-tokenised from text, so their ids may differ from those sampled.\n"
        if rows["retokenised"]
        else ""
    )
    return f"""---
{front}---

# {facts["run"]}: LoRA adapter for {", ".join(f"`{name}`" for name in facts["systems"])}

One LoRA adapter for all trainable roles of a multi-agent system, trained by Ratchet on the
{_describe_lessons(training.get("objective", "sft"))} The loss is on tokens that the model itself
sampled in parsed actions, and on nothing else.

Base model: {_describe_base(facts)}

## Use

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = "{base["name"]}"{f"  # {base['note']}" if base["note"] else ""}
tokenizer = AutoTokenizer.from_pretrained(base{revision})
model = AutoModelForCausalLM.from_pretrained(base{revision})
model = PeftModel.from_pretrained(model, "path/to/this/folder")
```
{_prompt_section(facts["prompt"])}
{RESULTS_BEGIN}
{RESULTS_END}

## Data

{rows["train"]} rows of {rows["tokens"]} tokens, {rows["loss_tokens"]} of them learnt; {rows["dev"]} rows held out.
Conversations of trainable roles that gave no row: {skipped}.
{retokenised}
| role | rows |
|---|---|
{roles}

## Training

| | |
|---|---|
| objective | {training.get("objective", "sft")} |
| LoRA | r={lora["r"]}, alpha={lora["alpha"]}, dropout={lora["dropout"]}, on {lora["targets"]} |
| optimiser | {training["optimizer"]}, weight decay {training["weight_decay"]} |
| learning rate | {training["learning_rate"]} |
| schedule | {facts["warmup_steps"]} steps of linear warm-up, then linear to 0 at step {facts["steps"]} |
| batch | {facts["batch"]} rows; gradients clipped at {training["max_grad_norm"]} |
| longest row | {training["max_length"]} tokens; longer ones are skipped, never cut |
| backend | {training["backend"]} |
| seed | {facts["made_of"]["seed"]} |
| started from | {_describe_start(facts)} |

{chosen}

## How it was made

Run `{facts["run"]}`, round {facts["round"]}; code {facts["code"] or "of an unknown version"}.
Digests of rows and base model are in `{FACTS}` beside this card, and those of the training questions and their gold
documents in `{TRAINING_QUESTIONS}`: evaluating the adapter on any of them is refused.

## Limits

It was taught the prompts and formats of this system and is of use inside it, with roles marked as trainable; other
prompts see a model that was changed for no purpose of theirs. It repeats what its rewards preferred, their mistakes
included, and what the base model could already do at times: self-training adds no knowledge. The
limits of the base model hold for it too.

## Licences

| | licence |
|---|---|
| base model, which holds for the adapter too | {base["licence"]} |
{_table_rows(facts["data_licences"])}

"unknown": no licence is named where Ratchet looks (the base model's card, the benchmark's entry); look it up before you
publish the adapter.
"""
