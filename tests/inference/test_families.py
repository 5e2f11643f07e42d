"""Every family of models: sampled, trained and exported as transformers alone would compute it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import transformers
from peft import PeftModel

from ratchet.core.config import ModelConfig, TrainingConfig
from ratchet.core.errors import UserError
from ratchet.core.files import read_json_file, read_log
from ratchet.export.weights import PROCESSORS, TrainedModel, export_merged
from ratchet.inference.adapters import read_adapter
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import SamplingParams
from ratchet.inference.footprint import footprint
from ratchet.inference.local.engine import LocalEngine
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.inference.weights import load_causal_model
from ratchet.training.adapter import describe_base
from ratchet.training.callback import TrainingCallback
from ratchet.training.checkpoints import EvaluatedAdapters
from ratchet.training.lora import add_lora, load_model, start_from_adapter
from ratchet.training.trainer import RowTrainer, trainer_config
from tests.helpers.families import FAMILIES, save_family

SCHEMA = {
    "type": "object",
    "properties": {"agent": {"enum": ["searcher", "answerer"]}},
    "required": ["agent"],
    "additionalProperties": False,
}
PADDED = {"qwen3_5", "qwen3_5 multimodal", "gpt_oss", "nemotron_h"}
"""Families that cannot be trained without padding."""
LEARNT = 8
"""Tokens at the end of a row."""
TRAINING = {
    "batch_size": 2, "micro_batch": 2, "learning_rate": 0.05, "warmup_steps": 0, "max_steps": 2, "eval_steps": 2,
    "dev_fraction": 0.0, "lora": {"r": 4, "lora_alpha": 8},
}  # fmt: skip


def log_probabilities(model: Any, prompt: Sequence[int], new: Sequence[int]) -> torch.Tensor:
    """Of each new token, in one pass without a cache."""
    with torch.no_grad():
        logits = model.eval()(torch.tensor([[*prompt, *new]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(new)[:, None])[:, 0]


def train(
    model: ModelConfig, rows: Sequence[Sequence[int]], out: Path, padding_free: bool = False
) -> tuple[Path, float]:
    """(the adapter after two steps of our trainer on rows whose last tokens are learnt, the loss before them)."""
    training = TrainingConfig.model_validate(TRAINING | {"padding_free": padding_free})
    facts = {"trajectory": "t", "conversation": 0, "role": "agent"}
    table = pa.Table.from_pylist(
        [facts | {"ids": ids, "loss_mask": [0] * (len(ids) - LEARNT) + [1] * LEARNT} for ids in rows]
    )
    watch = TrainingCallback(out, training.eval_steps, has_dev=True)
    learner = add_lora(load_model(model), training.lora, 0)
    trainer = RowTrainer(
        learner,
        load_tokenizer(model.path),
        trainer_config(training, model, out, len(rows), 0, 1),
        table,
        table,
        watch,
        False,
        training,
    )
    trainer.train()
    watch.close()
    start_from_adapter(learner, adapter := EvaluatedAdapters(out).all()[2])  # as a later round does
    return adapter, read_log(watch.log)[0]["dev_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
async def test_a_family_is_sampled_trained_and_exported(name: str, tmp_path: Path) -> None:
    model = ModelConfig(path=str(save_family(name, tmp_path / "model")), dtype="float32", device="cpu", cache_gb=0.01)
    whole = load_causal_model(model.path, whole=True)
    card = getattr(transformers, describe_base(model, "").get("auto_class", "AutoModelForCausalLM"))
    assert type(card.from_pretrained(model.path)) is type(whole), "a card loads what its adapter is for"
    assert footprint(model.path, None, "float32").weight_bytes == 4 * whole.num_parameters()
    engine = LocalEngine(model)
    free = SamplingParams(1.0, max_tokens=24, seed=1, logprobs=True)
    try:
        dialogue = Dialogue("agent", "agent", engine.format, True, "Answer in one word.")
        for question in ("Where is the harbour of Velm?", "Who built it?"):
            dialogue.user(question)
            said = await engine.generate(dialogue.ids, free)
            found = torch.tensor(said.logprobs)
            torch.testing.assert_close(found, log_probabilities(whole, dialogue.ids, said.ids), atol=1e-4, rtol=1e-4)
            prompt = list(dialogue.ids)
            dialogue.assistant(said, True)
        formed = await engine.generate(prompt, SamplingParams(1.0, max_tokens=64, seed=1, schema=SCHEMA))
        assert json.loads(formed.text)["agent"] in ("searcher", "answerer")

        rows = [row.ids for row in dialogue.rows] + [prompt]
        losses = torch.cat([-log_probabilities(whole, ids[:-LEARNT], ids[-LEARNT:]) for ids in rows])
        folder, loss = train(model, rows, tmp_path / "training")
        assert loss == pytest.approx(float(losses.mean()), rel=1e-3), "rows of different lengths side by side"
        if name in PADDED:
            with pytest.raises(UserError, match=r"training\.padding_free"):
                train(model, rows, tmp_path / "packed", padding_free=True)
        else:
            assert train(model, rows, tmp_path / "packed", padding_free=True)[1] == pytest.approx(loss, rel=1e-3)
        adapted = PeftModel.from_pretrained(whole, str(folder))
        expected = log_probabilities(adapted, prompt, said.ids)
        assert not torch.allclose(expected, found, atol=1e-2), "PEFT applies what was trained"
        again = await engine.generate(prompt, free, str(folder))
        found = torch.tensor(again.logprobs)
        torch.testing.assert_close(found, log_probabilities(adapted, prompt, again.ids), atol=1e-4, rtol=1e-4)
    finally:
        await engine.close()

    trained = TrainedModel(folder, read_adapter(folder), model, "0123", "tiny", "org/tiny", None)
    exported = export_merged(trained, tmp_path, "float32")
    if FAMILIES[name].vision is not None:
        assert read_json_file(exported / PROCESSORS[0]), "no server takes a multimodal model without it"
    merged = load_causal_model(str(exported), whole=True)
    assert type(merged) is type(whole)
    torch.testing.assert_close(log_probabilities(merged, prompt, said.ids), expected, atol=1e-4, rtol=1e-4)
