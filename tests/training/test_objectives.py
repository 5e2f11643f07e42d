"""Every objective: its rows and labels, its loss by its definition, what it makes more likely, its refusals."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel
from transformers import AutoModelForCausalLM

from inference.chat import load_tokenizer
from ratchet.config import Config, SelectConfig, TrainingConfig
from ratchet.errors import UserError
from ratchet.records import TokenRow
from ratchet.runfolder import RoundFolder
from sampling.store import TrajectoryStore
from tests.helpers.attempts import BAD, GOOD, make_attempts
from tests.helpers.tiny import tiny_format
from tests.helpers.world import tiny_model
from training import recipe
from training.callback import TrainingCallback, read_log
from training.lora import add_lora, load_model
from training.objective_trainer import ObjectiveTrainer, with_numbers
from training.packing import pack, packing_of
from training.reference import ReferenceCache
from training.rows import SCHEMA, check_rows, prepare_rows, split_rows, table_rows
from training.trainer import trainer_config

REPO = Path(__file__).parents[2]
ACTION = {"preference": {"level": "action"}}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "weighted": {"objective": "weighted"},
    "dpo": {"objective": "dpo"},
    "dpo of actions": {"objective": "dpo", **ACTION},
    "kto": {"objective": "kto"},
    "kto of actions": {"objective": "kto", **ACTION},
}
every_objective = pytest.mark.parametrize("settings", OBJECTIVES.values(), ids=OBJECTIVES.keys())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def start(folder: Path, model: Path, **training: Any) -> tuple[Path, Config, RoundFolder]:
    folder.mkdir(exist_ok=True)
    (folder / "model").symlink_to(model)
    return make_attempts(folder, **{"batch_size": 8, **training})


def rows_of(config: Config, folder: RoundFolder) -> list[TokenRow]:
    return list(table_rows(prepare_rows(config, folder)[0].table))


def said(row: TokenRow) -> str:
    return tiny_format().decode([i for i, learnt in zip(row.ids, row.loss_mask, strict=True) if learnt])


# Rows


@every_objective
def test_the_labels_are_the_sampled_ids(model: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    _, config, folder = start(tmp_path, model, **settings)
    stored = {
        one.key: one
        for one in TrajectoryStore(folder.trajectories).read([f"t{n}-{s}" for n in range(12) for s in range(4)])
    }
    rows = rows_of(config, folder)
    assert len(rows) > 12 and check_rows(rows, stored) >= len(rows)
    for row in rows:
        calls = [call for call in stored[row.trajectory].model_calls if call.conversation == row.conversation]
        ids = stored[row.trajectory].conversations[row.conversation].ids
        sampled = {at: ids[at] for call in calls for at in range(call.start, call.end)}
        labels = {at: row.ids[at] for at, learnt in enumerate(row.loss_mask) if learnt}
        if row.action is None:
            assert labels == sampled
        else:
            [call] = [call for call in calls if call.start == row.action]
            assert labels == {at: sampled[at] for at in range(call.start, call.end)} and len(row.ids) == call.end
    one = rows[0]
    cut = one.model_copy(update={"ids": one.ids[:-1], "loss_mask": one.loss_mask[:-1]})
    with pytest.raises(ValueError, match=r"cut|differ"):
        check_rows([cut], stored)


def test_the_rows_and_settings_of_sft_are_as_they_were(model: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model)
    rows = prepare_rows(config, folder)[0]
    assert rows.table.schema.equals(SCHEMA) and set(rows.table["trajectory"].to_pylist()) == {
        f"t{n}-0" for n in range(12)
    }
    assert not {"objective", "weighted", "preference"} & config.training.settings().keys()
    assert TrainingConfig(objective="dpo").settings().keys() - config.training.settings().keys() == {
        "objective",
        "preference",
    }
    assert SelectConfig().model_dump(mode="json").keys() == {"ties", "min_reward", "drop_all_equal", "keep_status"}


def test_a_weight_is_the_reward_less_the_mean_of_the_question(model: Path, tmp_path: Path) -> None:
    def weights(folder: str, **weighted: Any) -> dict[str, float]:
        _, config, rounds = start(tmp_path / folder, model, objective="weighted", weighted=weighted)
        return {row.trajectory: row.weight for row in rows_of(config, rounds) if row.question == "q3"}

    assert weights("a") == pytest.approx({"t3-0": 0.5, "t3-1": -0.05, "t3-2": -0.025, "t3-3": 0.25})
    assert weights("b", negative_weight=0) == pytest.approx({"t3-0": 0.5, "t3-3": 0.25})
    assert weights("c", baseline="none") == pytest.approx({"t3-0": 1.0, "t3-2": 0.25, "t3-3": 0.75})


def test_sides_of_trajectories(model: Path, tmp_path: Path) -> None:
    def sides(folder: str, **training: Any) -> set[tuple[str, str, bool]]:
        _, config, rounds = start(tmp_path / folder, model, **training)
        return {(row.example, row.trajectory, row.chosen) for row in rows_of(config, rounds) if row.question == "q3"}

    assert sides("a", objective="dpo") == {("q3#0", "t3-0", True), ("q3#0", "t3-1", False)}
    expected = {("t3-0", "t3-0", True), ("t3-1", "t3-1", False), ("t3-2", "t3-2", False), ("t3-3", "t3-3", True)}
    assert sides("b", objective="kto") == expected
    assert sides("c", objective="kto", preference={"min_margin": 0.3}) == {
        one for one in expected if one[0] in ("t3-0", "t3-1")
    }


def test_actions_after_the_same_tokens_are_compared_by_the_mean_reward_of_what_followed(
    model: Path, tmp_path: Path
) -> None:
    _, config, folder = start(tmp_path, model, objective="dpo", **ACTION)
    pairs: dict[str, dict[bool, TokenRow]] = defaultdict(dict)
    for row in rows_of(config, folder):
        pairs[row.example][row.chosen] = row
    first = [pair for pair in pairs.values() if said(pair[True]).startswith(GOOD)]
    assert len(first) == 12
    for pair in first:
        assert said(pair[False]).startswith(BAD)
        assert (pair[True].reward, pair[False].reward) == (0.875, 0.125)
    for pair in pairs.values():
        good, bad = pair[True], pair[False]
        assert good.action == bad.action and good.action is not None
        assert good.ids[: good.action] == bad.ids[: bad.action] and good.ids != bad.ids


def test_a_pair_with_one_side_too_long_is_left_out(model: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model, objective="dpo")
    lengths = {
        row.chosen: max(len(r.ids) for r in rows_of(config, folder) if r.chosen == row.chosen)
        for row in rows_of(config, folder)
    }
    limit = max(lengths[False] - 1, 1)
    limited = config.model_copy(update={"training": config.training.model_copy(update={"max_length": limit})})
    rows = prepare_rows(limited, folder)[0]
    examples = {row.example: set[bool]() for row in table_rows(rows.table)}
    for row in table_rows(rows.table):
        examples[row.example].add(row.chosen)
    assert all(sides == {True, False} for sides in examples.values()) and len(examples) < 12
    assert rows.skipped["the pair's other side has no row"] > 0


# Refusals


@pytest.mark.parametrize(
    ("rewards", "training", "text"),
    [
        ((0.5, 0.5), {"objective": "weighted"}, "none of the 4 kept questions has both"),
        ((0.5, 0.5), {"objective": "dpo"}, "better and worse trajectories"),
        ((0.5, 0.5), {"objective": "kto"}, "better and worse trajectories"),
        ((1.0, 0.75), {"objective": "dpo", "preference": {"min_margin": 0.5}}, "by more than 0.5"),
        ((0.5, 0.5), {"objective": "dpo", **ACTION}, "better and worse actions"),
        ((1.0, 1.0, 1.0, 0.75), {"objective": "dpo", "preference": {"level": "action", "min_margin": 0.4}}, "actions"),
    ],
)
def test_nothing_to_compare_is_one_line_before_torch_is_loaded(
    model: Path, tmp_path: Path, rewards: tuple[float, ...], training: dict[str, Any], text: str
) -> None:
    path, _, _ = start(tmp_path, model, questions=4, rewards=rewards, **training)
    script = f"""
import sys
from ratchet.config import load_config
from ratchet.errors import UserError
from training import recipe
try:
    recipe.train(load_config({str(path)!r}), 1)
except UserError as error:
    print(error)
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True)
    message, loaded = done.stdout.splitlines()
    assert text in message and "set training.objective=sft" in message and loaded == "False", done.stderr


def test_a_selection_from_before_there_were_objectives_is_named(model: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model, objective="kto")
    selection = json.loads(folder.selection.read_text())
    for choice in selection["questions"]:
        del choice["candidates"]
    folder.selection.write_text(json.dumps(selection))
    with pytest.raises(UserError, match="run `python -m rewards` again"):
        recipe.train(config, 1)


def test_an_example_with_more_rows_than_a_step_names_the_batch_size(model: Path, tmp_path: Path) -> None:
    _, config, _ = start(tmp_path, model, objective="dpo", batch_size=2)
    with pytest.raises(UserError, match=r"has 3 rows.*training.batch_size to 3 or more, or .*level=action"):
        recipe.train(config, 1)


# Losses


def label_logps(model: Any, row: dict[str, Any]) -> list[float]:
    with torch.no_grad():
        logps = model(torch.tensor([row["ids"]])).logits[0].log_softmax(-1)
    return [float(logps[at - 1, row["ids"][at]]) for at, learnt in enumerate(row["loss_mask"]) if learnt]


def defined_loss(config: TrainingConfig, rows: list[dict[str, Any]], now: Any, before: Any) -> float:
    """The definitions of docs/guides/objectives.md, a row at a time."""
    logps = [label_logps(now, row) for row in rows]
    reference = [label_logps(before, row) for row in rows]
    if config.objective == "weighted":
        total = 0.0
        for row, mine, theirs in zip(rows, logps, reference, strict=True):
            for p, q in zip(mine, theirs, strict=True):
                weight = row["weight"]
                total += -weight * p if weight > 0 else -weight * max(p - q, math.log(1 - config.weighted.clip))
        return total / sum(map(len, logps))
    ratio: dict[tuple[str, bool], float] = defaultdict(float)
    chosen: dict[str, list[float]] = defaultdict(list)
    for row, mine, theirs in zip(rows, logps, reference, strict=True):
        ratio[row["example"], row["chosen"]] += sum(mine) - sum(theirs)
        if row["chosen"]:
            chosen[row["example"]] += mine
    preference = config.preference
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    if config.objective == "dpo":
        found = [
            -math.log(sigmoid(preference.beta * (ratio[one, True] - ratio[one, False])))
            - preference.sft_weight * float(np.mean(chosen[one]))
            for one in chosen
        ]
    else:
        point = max(0.0, float(np.mean(list(ratio.values()))))
        found = [
            1 - sigmoid(preference.beta * (value - point) * (1 if side else -1)) for (_, side), value in ratio.items()
        ]
    return float(np.mean(found))


@every_objective
def test_the_logged_losses_are_the_defined_ones_and_the_gap_widens(
    model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    _, config, folder = start(tmp_path, model, **settings, max_steps=12, eval_steps=4, learning_rate=0.02)
    recipe.train(config, 1)
    log = {line["step"]: line["dev_loss"] for line in read_log(folder.training / "log.jsonl") if "dev_loss" in line}
    rows, question_of = prepare_rows(config, folder)
    _, dev = split_rows(rows.table, question_of, config.training.dev_fraction, config.seed)
    before = AutoModelForCausalLM.from_pretrained(model).eval()
    facts = json.loads((folder.adapter / "training.json").read_text())
    assert f"| objective | {config.training.objective} |" in (folder.adapter / "README.md").read_text()
    assert log[0] == pytest.approx(defined_loss(config.training, dev.to_pylist(), before, before), rel=1e-4)
    now = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), folder.adapter).eval()
    assert log[facts["step"]] == pytest.approx(defined_loss(config.training, dev.to_pylist(), now, before), rel=1e-4)
    assert facts["step"] > 0 and log[facts["step"]] < log[0]

    def gap(model: Any) -> float:
        """Mean log-probability of a token of the good rows less that of the bad ones."""
        logps: dict[bool, list[float]] = {True: [], False: []}
        for row in rows.table.to_pylist():
            logps[row["chosen"]] += label_logps(model, row)
        return float(np.mean(logps[True]) - np.mean(logps[False]))

    assert gap(now) > gap(before) + 0.01


@every_objective
def test_micro_batches_do_not_change_the_curve(model: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    curves = []
    for micro in (1, 8):
        _, config, folder = start(tmp_path / str(micro), model, **settings, micro_batch=micro)
        recipe.train(config, 1)
        curves.append([line | {"tokens_per_second": 0} for line in read_log(folder.training / "log.jsonl")])
    assert len(curves[0]) == 10 and curves[0] == [pytest.approx(line, rel=1e-3) for line in curves[1]]


def test_sft_with_weights_by_difficulty_weighs_questions(model: Path, tmp_path: Path) -> None:
    path, config, folder = start(tmp_path, model)
    text = path.read_text().replace("rewards:\n", "rewards:\n  select: {difficulty: failure_rate, success: 0.3}\n")
    path.write_text(text)
    selection = json.loads(folder.selection.read_text())
    for number, choice in enumerate(selection["questions"]):
        choice["weight"] = 0.25 if number % 2 else 1.0
    folder.selection.write_text(json.dumps(selection))
    recipe.train(config, 1)
    rows, question_of = prepare_rows(config, folder)
    _, dev = split_rows(rows.table, question_of, config.training.dev_fraction, config.seed)
    base = AutoModelForCausalLM.from_pretrained(model).eval()
    logps = [label_logps(base, row) for row in dev.to_pylist()]
    weighted = sum(-row["weight"] * sum(mine) for row, mine in zip(dev.to_pylist(), logps, strict=True))
    first = read_log(folder.training / "log.jsonl")[0]
    assert first["dev_loss"] == pytest.approx(weighted / sum(map(len, logps)), rel=1e-4)
    assert not (folder.training / "reference").exists()


# The reference, and how rows make up steps


def trainer_of(config: Config, folder: RoundFolder, out: Path, resumed: bool) -> ObjectiveTrainer:
    table = with_numbers(prepare_rows(config, folder)[0].table)
    agent = config.models["agent"]
    packing = packing_of(table, config.training)
    settings = trainer_config(config.training, agent, out, packing.slots if packing else len(table), 0, 1)
    learner = add_lora(load_model(agent), config.training.lora, 0)
    watch = TrainingCallback(out, 5, has_dev=False)
    rows = (table, table.slice(0, 0))
    return ObjectiveTrainer(learner, load_tokenizer(agent.path), settings, *rows, watch, resumed, config.training)


def test_the_reference_is_computed_once_and_completed_after_a_kill(model: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model, objective="kto")
    out = tmp_path / "training"
    values = trainer_of(config, folder, out, resumed=False).reference()
    rows = prepare_rows(config, folder)[0].table.to_pylist()
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


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_the_gradient_of_a_step_is_that_of_the_loss_over_all_its_rows(model: Path, tmp_path: Path, name: str) -> None:
    _, config, folder = start(tmp_path, model, objective=name, questions=4, batch_size=128)
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
