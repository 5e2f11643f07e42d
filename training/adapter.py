"""The published adapter: PEFT's format, training.json with the facts behind it, and a model card."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any, Literal

import yaml

from ratchet.core.config import ModelConfig, SplitConfig
from ratchet.core.errors import UserError
from ratchet.core.escape import Markdown, markdown_template
from ratchet.core.files import new_folder, read_json_file, write_atomic, write_json
from ratchet.core.locks import disk_error
from ratchet.core.runfolder import RoundFolder
from ratchet.inference.adapters import CONFIG, WEIGHTS, read_adapter
from ratchet.inference.weights import is_multimodal
from ratchet.questions.benchmark import load_benchmark
from ratchet.questions.leakage import TRAINING_QUESTIONS

SETTINGS = "training settings"
"""The name of the training's settings among an adapter's inputs."""
FACTS = "training.json"
TEMPLATE = Path(__file__).with_name("card.md.j2")
RESULTS_BEGIN, RESULTS_END = "<!-- results: begin -->", "<!-- results: end -->"
RESULTS = re.compile(rf"^{re.escape(RESULTS_BEGIN)}$(.*?)^{re.escape(RESULTS_END)}$", re.MULTILINE | re.DOTALL)
"""The place of the evaluation's results (`evaluation/headline.py`): lines of their own, which no name is."""
CardForm = Literal["adapter", "merged"]
FORMS: dict[CardForm, tuple[str, dict[str, Any]]] = {
    "adapter": ("LoRA adapter", {"library_name": "peft", "tags": ["lora"]}),
    "merged": ("fine-tuned model", {"library_name": "transformers", "base_model_relation": "finetune", "tags": []}),
}
"""By form of a trained model: the words of a card's title, and fields of its front matter."""
TAGS = ["self-training", "retrieval-augmented-generation", "ratchet"]
UNKNOWN = "unknown"


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
    """True where `folder` was trained from the same inputs; False where it does not exist."""
    return read_facts(folder) is not None and not _changed(folder, inputs)


def _changed(folder: Path, inputs: dict[str, Any]) -> list[str]:
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


def describe_base(model: ModelConfig, digest: str) -> dict[str, str]:
    """The base model for the card: by its hub id, or a local folder by its name and its content's digest."""
    folder, more = Path(model.path), dict[str, str]()
    if is_multimodal(model.path, model.revision):
        more = {"auto_class": "AutoModelForImageTextToText"}
    if not folder.is_dir():
        return {"name": model.path, "note": "", "licence": UNKNOWN, **more}
    note = f"a local folder, content digest {digest}: put its path here"
    return {"name": folder.resolve().name, "note": note, "licence": _card_licence(folder / "README.md"), **more}


def _card_licence(card: Path) -> str:
    """The licence in a model card's front matter; 'unknown' without one that can be read."""
    try:
        start, front, _ = card.read_text(encoding="utf-8").split("---\n", 2)
        licence = yaml.safe_load(front).get("license") if not start.strip() else None
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return UNKNOWN
    return licence if isinstance(licence, str) and licence.isprintable() else UNKNOWN


def data_licences(splits: Iterable[SplitConfig]) -> dict[str, str]:
    """By training question set, its licence: its benchmark's, or 'unknown'."""
    return {
        f"training questions, {name}" if name else "training questions, own file": (
            load_benchmark(name).licence if name else UNKNOWN
        )
        for name in sorted({split.benchmark for split in splits}, key=str)
    }


def results_of(card: str) -> str:
    """The results that an evaluation has written into a card, without the marks around them."""
    found = RESULTS.search(card)
    return found[1].strip("\n") if found else ""


def model_card(facts: dict[str, Any], form: CardForm = "adapter", place: str = "", results: str = "") -> str:
    """A card for people and for the Hub: what the model is, what made it, what it is not.

    `place`: where an exported form lies, such as its name on the hub; empty for the adapter in a run folder. `results`:
    those of an earlier card.
    """
    title, front_of_form = FORMS[form]
    front = {
        "base_model": facts["base"]["name"],
        "license": facts["base"]["licence"],
        "pipeline_tag": "text-generation",
        **front_of_form,
        "tags": [*front_of_form["tags"], *TAGS],
    }
    start = facts["made_of"].get("starting adapter")
    return markdown_template(TEMPLATE).render(
        facts,
        front=front,
        arguments=facts["training"].get("arguments", {}),
        title=title,
        auto_class=facts["base"].get("auto_class", "AutoModelForCausalLM"),
        form=form,
        place=place or "path/to/this/folder",
        has_prompts=form == "adapter" and bool(place),
        start=f"the adapter that it started from (digest {start})" if start else "the base model",
        results=Markdown("\n".join(filter(None, (RESULTS_BEGIN, results, RESULTS_END)))),
        facts_file=FACTS,
        questions_file=TRAINING_QUESTIONS,
    )
