"""The training of objectives: their gradient, their reference, their steps (see test_objective_processes.py too)."""

import json
import shutil
import signal
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from ratchet.commands.train import train_round
from ratchet.core.config import Config, load_config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.training.batches import pack, packing_of
from ratchet.training.callback import TrainingCallback, read_log
from ratchet.training.lessons import with_numbers
from ratchet.training.lora import add_lora, load_model
from ratchet.training.objective_trainer import ObjectiveTrainer, ReferenceCache
from ratchet.training.objectives.objective import load_objective
from ratchet.training.rows import split_rows
from ratchet.training.trainer import trainer_config
from tests.helpers.attempts import label_logps
from tests.helpers.attempts import start_attempts as start
from tests.helpers.world import prepared_rows


@pytest.mark.slow
def test_sft_with_weights_by_difficulty_weighs_questions(model: Path, tmp_path: Path) -> None:
    path, config, folder = start(tmp_path, model)
    text = path.read_text().replace("rewards:\n", "rewards:\n  select: {difficulty: failure_rate, success: 0.3}\n")
    path.write_text(text)
    selection = json.loads(folder.selection.read_text())
    for number, choice in enumerate(selection["questions"]):
        choice["weight"] = 0.25 if number % 2 else 1.0
    folder.selection.write_text(json.dumps(selection))
    train_round(config, 1)
    rows, question_of = prepared_rows(config, folder)
    _, dev = split_rows(rows.table, question_of, config.training.dev_fraction, config.seed)
    base = AutoModelForCausalLM.from_pretrained(model).eval()
    logps = [label_logps(base, row) for row in dev.to_pylist()]
    weighted = sum(-row["weight"] * sum(mine) for row, mine in zip(dev.to_pylist(), logps, strict=True))
    first = read_log(folder.training / "log.jsonl")[0]
    assert first["dev_loss"] == pytest.approx(weighted / sum(map(len, logps)), rel=1e-4)
    assert not (folder.training / "reference").exists()


@pytest.mark.slow
def test_a_trained_round_takes_another_objective_once_its_training_is_moved(model: Path, tmp_path: Path) -> None:
    path, config, folder = start(tmp_path, model, max_steps=1)
    train_round(config, 1)
    path.write_text(path.read_text().replace("training:\n", "training:\n  objective: dpo\n"))
    other = load_config(path)
    with pytest.raises(UserError, match=r"training\.objective: 'sft' there, 'dpo' now"):
        train_round(other, 1)
    folder.training.rename(tmp_path / "training of sft")
    folder.adapter.rename(tmp_path / "adapter of sft")
    train_round(other, 1)
    assert json.loads((folder.adapter / "training.json").read_text())["training"]["objective"] == "dpo"


# The reference, and how rows make up steps


@pytest.mark.slow
def test_the_reference_of_a_later_round_is_the_adapter_that_it_starts_from(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, config, first = start(tmp_path, model, objective="kto", learning_rate=0.05)
    train_round(config, 1)
    second = RunFolder(config.folder).round(2)
    shutil.copytree(first.trajectories, second.trajectories)
    shutil.copy(first.selection, second.selection)
    assert "sampled by" not in capsys.readouterr().err
    train_round(config, 2, first.adapter)
    assert "were sampled by base, and training starts from " in capsys.readouterr().err
    losses = [
        [line["dev_loss"] for line in read_log(one.training / "log.jsonl") if "dev_loss" in line]
        for one in (first, second)
    ]
    assert [each[0] for each in losses] == pytest.approx([0.5, 0.5], abs=1e-5) and min(losses[0]) < 0.499


def trainer_of(config: Config, folder: RoundFolder, out: Path, resumed: bool) -> ObjectiveTrainer:
    table = with_numbers(prepared_rows(config, folder)[0].table)
    agent = config.models["agent"]
    packing = packing_of(table, load_objective(config.training))
    settings = trainer_config(config.training, agent, out, packing.slots if packing else len(table), 0, 1)
    learner = add_lora(load_model(agent), config.training.lora, 0)
    watch = TrainingCallback(out, 5, has_dev=False)
    rows = (table, table.slice(0, 0))
    return ObjectiveTrainer(learner, load_tokenizer(agent.path), settings, *rows, watch, resumed, config.training)


@pytest.mark.slow
def test_the_reference_is_computed_once_and_completed_after_a_kill(model: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model, objective="kto")
    out = tmp_path / "training"
    values = trainer_of(config, folder, out, resumed=False).reference()
    rows = prepared_rows(config, folder)[0].table.to_pylist()
    base = AutoModelForCausalLM.from_pretrained(model).eval()
    assert len(values) == len(rows) == 72
    for row, mine in zip(rows, values, strict=True):
        assert mine.tolist() == pytest.approx(label_logps(base, row), rel=1e-4)
    first, second = sorted((out / "reference").iterdir())
    before = {path: path.read_bytes() for path in (first, second)}
    stamp = first.stat().st_mtime_ns
    second.write_bytes(second.read_bytes()[:50])
    assert len(trainer_of(config, folder, out, resumed=False).reference()) == 72
    assert {path: path.read_bytes() for path in (first, second)} == before and first.stat().st_mtime_ns == stamp
    second.unlink()
    with pytest.raises(UserError, match=r"from before training are missing.*delete .* to start again"):
        trainer_of(config, folder, out, resumed=True).reference()


@pytest.mark.slow
def test_told_to_stop_while_the_reference_is_computed_it_ends_after_a_part(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        """What the command's own handler of SIGTERM stands for."""

    def end(number: int, frame: object) -> None:
        raise Ended

    _, config, folder = start(tmp_path, model, objective="kto")
    trainer = trainer_of(config, folder, tmp_path / "training", resumed=False)
    write = trainer.cache.write

    def told(part: int, values: Sequence[Any]) -> None:
        write(part, values)
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        monkeypatch.setattr(trainer.cache, "write", told)
        with pytest.raises(Ended), trainer.watch.stop_request:
            trainer.reference()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(trainer.cache.missing()) == 1, "one of the two parts is on disk"
    assert len(trainer_of(config, folder, tmp_path / "training", resumed=False).reference()) == 72


def test_a_reference_of_other_rows_is_not_taken(tmp_path: Path) -> None:
    def table(*labels: int) -> pa.Table:
        return pa.table({"loss_mask": pa.array([[1] * n for n in labels], pa.list_(pa.int8()))})

    ReferenceCache(tmp_path, table(1, 2)).write(0, [np.zeros(1, np.float32), np.zeros(2, np.float32)])
    assert ReferenceCache(tmp_path, table(1, 2)).missing() == []
    assert ReferenceCache(tmp_path, table(2, 2)).missing() == [0]
    with pytest.raises(ValueError, match="missing or damaged"):
        ReferenceCache(tmp_path, table(2, 2)).read()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(5, 9))
def test_every_epoch_has_every_row_once_and_no_example_in_two_steps(sizes: list[int], batch: int) -> None:
    numbers = iter(range(sum(sizes)))
    examples = [[next(numbers) for _ in range(size)] for size in sizes]
    packing = pack(examples, batch)
    lengths = [(n * 37) % 50 for n in range(sum(sizes))]
    epochs = [packing.order(lengths, 1, epoch) for epoch in range(3)]
    for order in epochs:
        assert len(order) == packing.slots and sorted(set(order) - {len(lengths)}) == list(range(len(lengths)))
        steps = [order[at : at + batch] for at in range(0, len(order), batch)]
        for example in examples:
            assert sum(bool(set(example) & set(step)) for step in steps) == 1
    assert epochs[0] == packing.order(lengths, 1, 0)


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize(("name", "padding_free"), [("dpo", False), ("dpo", True), ("kto", False)])
def test_the_gradient_of_a_step_is_that_of_the_loss_over_all_its_rows(
    model: Path, tmp_path: Path, name: str, padding_free: bool
) -> None:
    settings: dict[str, Any] = {"questions": 4, "batch_size": 128, "padding_free": padding_free}
    _, config, folder = start(tmp_path, model, objective=name, **settings)
    trainer = trainer_of(config, folder, tmp_path / "training", resumed=False)
    reference = trainer.reference()
    weights = {key: one for key, one in trainer.model.named_parameters() if one.requires_grad}
    torch.manual_seed(0)
    for weight in weights.values():
        weight.data += 0.1 * torch.randn_like(weight)
    rows = trainer.rows.to_pylist()

    ratios: dict[tuple[str, bool], Any] = {}
    chosen: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        logps = trainer.model(torch.tensor([row["ids"]])).logits[0].log_softmax(-1)
        mine = torch.stack([logps[at - 1, row["ids"][at]] for at, bit in enumerate(row["loss_mask"]) if bit])
        side = (row["example"], row["chosen"])
        ratios[side] = ratios.get(side, 0) + mine.sum() - float(reference[row["number"]].sum())
        if row["chosen"]:
            chosen[row["example"]].append(mine)
    beta = config.training.preference.beta
    if name == "dpo":
        losses = [
            -torch.nn.functional.logsigmoid(beta * (ratios[one, True] - ratios[one, False])) - torch.cat(own).mean()
            for one, own in chosen.items()
        ]
    else:
        point = max(0.0, float(np.mean([float(one.detach()) for one in ratios.values()])))
        losses = [1 - torch.sigmoid(beta * (one - point) * (1 if side else -1)) for (_, side), one in ratios.items()]
    wanted = torch.stack(losses).mean()
    gradients = dict(zip(weights, torch.autograd.grad(wanted, list(weights.values())), strict=True))

    batches = [trainer.data_collator(rows[at : at + 3]) for at in range(0, len(rows), 3)]
    trainer._derive(batches)
    total = sum(trainer.compute_loss(trainer.model, batch) for batch in batches)
    found = dict(zip(weights, torch.autograd.grad(total, list(weights.values())), strict=True))
    assert float(total.detach()) == pytest.approx(float(wanted.detach()), rel=1e-4)
    assert max(float(one.abs().max()) for one in gradients.values()) > 1e-3
    assert all(torch.allclose(found[key], gradients[key], rtol=1e-3, atol=1e-6) for key in weights)
