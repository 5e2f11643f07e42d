"""Steps, batch and warm-up where rows are few: training learns, and says what it made of the settings."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from safetensors.torch import load_file

from ratchet.commands.checks import check_training_extras
from ratchet.commands.train import train_round
from ratchet.core.config import ModelConfig, TrainingConfig
from ratchet.core.errors import UserError
from ratchet.core.files import read_log
from ratchet.training.batches import epoch_order
from ratchet.training.callback import TrainingCallback
from ratchet.training.schedule import describe_adjustments, schedule
from ratchet.training.trainer import RowTrainer, trainer_config
from tests.helpers.world import make_run

DEFAULTS = TrainingConfig()


@pytest.mark.slow
def test_few_rows_are_learnt_from_with_the_default_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    defaults = {key: getattr(DEFAULTS, key) for key in ("batch_size", "micro_batch", "warmup_steps", "max_steps")}
    _, config, folder = make_run(tmp_path, questions=4, epochs=1.0, learning_rate=1e-4, **defaults)
    train_round(config, 1)
    said = capsys.readouterr().err
    assert "training.batch_size=128 is more than the 8 rows: every step takes all of them" in said
    assert "training.warmup_steps=50 is more than a fifth of the 1 steps: 0 of them warm up" in said
    assert "1 steps of 8 rows, learning rate up to 0.0001 after 0 steps of warm-up" in said
    weights = load_file(folder.adapter / "adapter_model.safetensors")
    assert all(weight.any() for name, weight in weights.items() if "lora_B" in name)
    facts = json.loads((folder.adapter / "training.json").read_bytes())
    assert (facts["steps"], facts["batch"], facts["warmup_steps"]) == (1, 8, 0)
    card = (folder.adapter / "README.md").read_text()
    assert "| linear, with 0 steps of warm-up, over 1 steps |" in card and "| batch | 8 rows;" in card


def test_the_papers_schedule_stays_as_it_is(tmp_path: Path) -> None:
    model = ModelConfig(path="m", device="cpu", dtype="float32")
    for processes in (1, 8):
        paper = schedule(3000, DEFAULTS, processes)
        assert (paper.batch, paper.per_epoch, paper.steps, paper.warmup) == (128, 24, 5000, 50)
        assert paper.accumulation == 128 // processes and describe_adjustments(3000, DEFAULTS, paper) == []
        arguments = trainer_config(DEFAULTS, model, tmp_path, 3000, 0, processes)
        assert (arguments.warmup_steps, arguments.max_steps) == (50, 5000)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (4, 0), (5, 1), (36, 7), (249, 49), (250, 50), (251, 50)])
def test_warm_up_takes_a_fifth_of_the_steps_at_most(steps: int, warmup: int) -> None:
    training = TrainingConfig(max_steps=steps)
    found = schedule(1000, training, 1)
    assert found.warmup == warmup and found.first == (2 if warmup else 1) <= steps
    said = describe_adjustments(1000, training, found)
    assert len(said) == (warmup < 50) and all(f"a fifth of the {steps} steps: {warmup}" in line for line in said)


@pytest.mark.parametrize(("rows", "micro", "processes", "accumulation"), [(40, 2, 2, 10), (41, 4, 2, 6), (3, 8, 4, 1)])
def test_a_batch_of_all_rows_is_one_step_of_the_same_rows(
    rows: int, micro: int, processes: int, accumulation: int
) -> None:
    found = schedule(rows, TrainingConfig(micro_batch=micro, epochs=3.0), processes)
    assert (found.batch, found.per_epoch, found.steps, found.accumulation) == (rows, 1, 3, accumulation)
    room = accumulation * micro * processes
    assert room >= rows and epoch_order([1] * rows, room, 0, 0) == epoch_order([1] * rows, 128, 0, 0)


@pytest.mark.slow
def test_the_best_adapter_is_never_the_one_before_the_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learning rate of the first warm-up step is 0, so its dev loss is the base model's, here the lowest."""
    measure = RowTrainer.dev_loss
    # Whether training makes the loss worse depends on how the CPU rounds, so the test adds to it.
    monkeypatch.setattr(
        RowTrainer, "dev_loss", lambda trainer: measure(trainer) + max(0, trainer.state.global_step - 1)
    )
    _, config, folder = make_run(tmp_path, warmup_steps=1, max_steps=5, eval_steps=1)
    train_round(config, 1)
    losses = {line["step"]: line["dev_loss"] for line in read_log(folder.training / "log.jsonl") if "dev_loss" in line}
    assert losses[1] == losses[0] < min(losses[step] for step in range(2, 6))
    assert json.loads((folder.adapter / "training.json").read_bytes())["step"] >= 2
    assert any(w.any() for n, w in load_file(folder.adapter / "adapter_model.safetensors").items() if "lora_B" in n)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_dev_loss_that_is_not_finite_is_an_error_and_replaces_no_adapter(tmp_path: Path, loss: float) -> None:
    watch, state = TrainingCallback(tmp_path, 5, has_dev=True), SimpleNamespace(global_step=7)
    stand_in: Any = None
    with pytest.raises(UserError, match=rf"the dev loss is {loss} at step 7: lower training\.learning_rate"):
        watch.on_evaluate(stand_in, state, stand_in, {"eval_loss": loss})


@pytest.mark.slow
def test_what_transformers_and_peft_know_is_passed_through(tmp_path: Path) -> None:
    arguments = {"optim": "adafactor", "lr_scheduler_type": "cosine", "weight_decay": 0.01, "max_grad_norm": 0.5}
    lora = {"r": 4, "lora_dropout": 0.1, "use_rslora": True, "target_modules": ["q_proj"]}
    _, config, folder = make_run(tmp_path, arguments=arguments, lora=lora)
    check_training_extras(config.training)
    made = trainer_config(config.training, config.models["agent"], tmp_path, 10, 0, 1)
    assert {name: getattr(made, name) for name in arguments} == arguments
    train_round(config, 1)
    written = json.loads((folder.adapter / "adapter_config.json").read_bytes())
    assert {name: written[name] for name in lora} == lora and written["lora_alpha"] == 16
    card = (folder.adapter / "README.md").read_text()
    assert "| adafactor, weight decay 0.01 |" in card and "| cosine, with " in card and "use_rslora=True" in card


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"arguments": {"learning_rate": 1}}, "learning_rate is set by training.learning_rate"),
        ({"arguments": {"bf16": True}}, r"bf16 is set by models\.\*\.dtype"),
        ({"arguments": {"wieght_decay": 1}}, r"arguments\.wieght_decay: .*no such key.*'weight_decay'"),
        ({"arguments": {"optim": "adam"}}, r"arguments\.optim: 'adam' is none of adamw_torch, "),
        ({"lora": {"alpha": 8}}, r"training\.lora\.alpha: PEFT's LoraConfig has no such key.*'lora_alpha'"),
        ({"lora": {"use_dora": True}}, r"training\.lora\.use_dora is True, and engines apply plain LoRA alone"),
        ({"lora": {"modules_to_save": ["lm_head"]}}, r"training\.lora\.modules_to_save is \['lm_head'\]"),
        ({"lora": {"bias": "all"}}, r"training\.lora\.bias is 'all'"),
        ({"lora": {"r": 0}}, "greater than 0"),
    ],
)
def test_what_is_set_elsewhere_or_unknown_is_refused_before_anything_is_sampled(
    training: dict[str, Any], said: str
) -> None:
    with pytest.raises((UserError, ValidationError), match=said):
        check_training_extras(TrainingConfig(**training))
