"""The adapter as a folder for plain PEFT, and the base model with the adapter merged into its weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.agents.core.prompts import write_prompts
from ratchet.agents.core.system import load_system
from ratchet.core.config import ModelConfig, SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.escape import markdown_code, markdown_text
from ratchet.core.files import write_atomic, write_json
from ratchet.export.folders import CARD, export_folder, finish_export
from ratchet.inference.adapters import CONFIG, WEIGHTS, Adapter, read_adapter
from ratchet.questions.leakage import TRAINING_QUESTIONS
from ratchet.training.adapter import FACTS, FORMS, CardForm, describe_base, model_card, read_facts, results_of
from ratchet.training.schedule import check_model_is_open

PROBES = (
    "Question: Who built the harbour of Grisket, and in which year was it opened?",
    "List the steps that answer the question. Then say which documents support the response.",
    '{"agent": "searcher", "input": {"question": "When did the ferry between the two towns begin to run?"}}',
    "The response is short, and every claim in it is supported by one of the documents that were found.",
)
MIN_EQUAL, MAX_PREFERENCE = 0.9, 0.5
"""The least share of greedy tokens that are equal, and the nats by which the adapter may prefer another: bfloat16 has 8
bits, so logits of 16 to 32 are rounded to steps of 0.125. With SmolLM2-135M and an adapter that had changed most of its
answers, all of 83 were equal in bfloat16 (29 November 2026)."""
PROMPTS = "prompts"
PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""The settings by which a multimodal model takes pictures, sound and films; servers read them at their start."""


@dataclass(frozen=True)
class TrainedModel:
    """An adapter and the base model that it was trained for."""

    folder: Path
    adapter: Adapter
    base: ModelConfig
    base_digest: str
    name: str
    """For files and titles, such as demo-round-1."""
    base_id: str
    """The base model's name in cards: its id on a hub, or its folder's name."""
    facts: dict[str, Any] | None
    """training.json, where the adapter was trained here; without local paths."""

    def card(self, form: CardForm) -> str:
        """The card of an exported form, with the results of the adapter's evaluation where there is one."""
        own = self.folder / CARD
        written = own.read_text(encoding="utf-8") if own.exists() else ""
        if self.facts is None:
            title = f"# {markdown_text(self.name)}\n\n{FORMS[form][0]}: an adapter for {markdown_code(self.base_id)}.\n"
            return written if written and form == "adapter" else title
        return model_card(self.facts, form, f"path/to/{form}", results_of(written))


def open_trained_model(folder: Path, model_name: str, model: ModelConfig, name: str, base_id: str = "") -> TrainedModel:
    """The adapter in `folder` with its base model. UserError where it is damaged or of another model."""
    from ratchet.inference.local.model import model_fingerprint  # late: it imports torch

    check_model_is_open(model_name, model)
    adapter, facts = read_adapter(folder), read_facts(folder)
    digest = model_fingerprint(model)
    if facts is not None and facts["made_of"].get("base model") != digest:
        raise UserError(
            f"{folder}: was trained for another base model or precision ({facts['base_model']}, digest "
            f"{facts['made_of'].get('base model')}) than models.{model_name} ({model.path}, digest {digest})"
        )
    base = describe_base(model, digest)
    if base_id:
        base = {**base, "name": base_id, "note": ""}
    if facts is not None:
        facts = {**facts, "base": base, "base_model": base["name"], "run": Path(facts["run"]).name}
    return TrainedModel(folder, adapter, model, digest, name, base["name"], facts)


def export_adapter(model: TrainedModel, systems: Mapping[str, SystemConfig], out: Path) -> Path:
    """The adapter's folder, without local paths, with its card and the prompts of its systems, by member."""
    target = out / "adapter"

    def fill(folder: Path) -> None:
        settings = {**model.adapter.config, "base_model_name_or_path": model.base_id}
        write_json(folder / CONFIG, settings)
        write_atomic(folder / WEIGHTS, model.adapter.weights)
        if model.facts is not None:
            write_json(folder / FACTS, model.facts)
            shutil.copyfile(model.folder / TRAINING_QUESTIONS, folder / TRAINING_QUESTIONS)
        for member, system in systems.items():
            list(write_prompts(load_system(system).prompts, folder / PROMPTS / member))

    export_folder(target, {"adapter": model.adapter.digest, "base model's name": model.base_id}, fill)
    finish_export(target, model.card("adapter"))
    return target


def export_merged(model: TrainedModel, out: Path, dtype: str) -> Path:
    """A model folder of base + adapter, in safetensors. It is merged in float32 and rounded once, to `dtype`."""
    target = out / "merged"
    inputs = {"adapter": model.adapter.digest, "base model": model.base_digest, "dtype": dtype}
    export_folder(target, inputs, lambda folder: _merge(model, folder, dtype))
    finish_export(target, model.card("merged"))
    return target


def check_merged(model: TrainedModel, folder: Path, dtype: str) -> str:
    """Compare the merged weights with the adapter beside the base model, both in `dtype`, on PROBES: the likeliest next
    token after each of their tokens. A line that says how many are equal. Raises UserError where more differ, or by
    more, than rounding explains."""
    import torch
    from peft import PeftModel

    from ratchet.inference.tokenizer import load_tokenizer
    from ratchet.inference.weights import load_causal_model

    tokenizer = load_tokenizer(model.base.path, model.base.revision)
    prompts = [torch.tensor([tokenizer.encode(text)]) for text in PROBES]

    def logits(loaded: Any) -> torch.Tensor:
        with torch.inference_mode():
            return torch.cat([loaded(prompt).logits[0].float() for prompt in prompts])

    precision = getattr(torch, dtype)
    own = load_causal_model(str(folder), dtype=precision)
    merged = logits(own).argmax(-1)
    del own
    base = load_causal_model(model.base.path, model.base.revision, dtype=precision)
    adapted = logits(PeftModel.from_pretrained(base, str(model.folder)).eval())
    preferred = adapted.max(-1).values - adapted.gather(-1, merged[:, None])[:, 0]
    equal = int((preferred == 0).sum())
    if equal < MIN_EQUAL * len(preferred) or float(preferred.max()) > MAX_PREFERENCE:
        raise UserError(
            f"{folder}: {len(preferred) - equal} of {len(preferred)} greedy tokens differ from those with the adapter, "
            f"one by {float(preferred.max()):.2f} nats, which is more than rounding to {dtype}; leave serve.merge out"
        )
    return f"{folder}: {equal} of {len(preferred)} greedy tokens are those with the adapter"


def _merge(model: TrainedModel, folder: Path, dtype: str) -> None:
    import warnings

    import torch
    from transformers.utils import cached_file, logging

    from ratchet.inference.tokenizer import load_tokenizer
    from ratchet.inference.weights import load_causal_model, merge_adapter

    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)  # peft asks transformers in an old way
    base = model.base
    whole = load_causal_model(base.path, base.revision, whole=True, dtype=torch.float32)
    merged = merge_adapter(whole, model.folder, base.path)
    merged.to(getattr(torch, dtype)).save_pretrained(folder)
    load_tokenizer(base.path, base.revision).save_pretrained(folder)
    optional = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    for name in PROCESSORS:
        if found := cached_file(base.path, name, revision=base.revision, **optional):
            shutil.copyfile(found, folder / name)
