"""Every objective's training from end to end: its loss by its definition, and the same curve from other micro-batches,
after a kill, and from two processes."""

import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM

from ratchet.commands.train import train_round
from ratchet.core.config import Config, TrainingConfig
from ratchet.core.files import read_log
from ratchet.core.runfolder import RoundFolder
from ratchet.training.objectives.weighted import CLIP
from ratchet.training.rows import split_rows
from tests.helpers.attempts import OBJECTIVES, label_logps, make_attempts
from tests.helpers.killed_training import killed_after
from tests.helpers.world import prepared_rows, tiny_model, trl_head_on_cpu
from tests.training.test_processes import PROGRAM, assert_same, finish, launch, start

WEIGHTS = {"coordinator": 0.5, "searcher": 2.0}
"""Of roles."""
SETTINGS: dict[str, Any] = {
    "batch_size": 8,
    "micro_batch": 2,
    "max_steps": 8,
    "eval_steps": 4,
    "learning_rate": 0.02,
    "role_weights": WEIGHTS,
}


@dataclass(frozen=True)
class Trained:
    """A round that one process has trained, undisturbed."""

    config: Config
    folder: RoundFolder
    settings: dict[str, Any]


@pytest.fixture(scope="module")
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The parameter names the objective."""
    settings = SETTINGS | OBJECTIVES[request.param]
    _, config, folder = make_attempts(tmp_path_factory.mktemp("alone"), **settings)
    train_round(config, 1)
    return Trained(config, folder, settings)


def defined_loss(config: TrainingConfig, rows: list[dict[str, Any]], now: Any, before: Any) -> float:
    """The definitions of docs/guides/extend.md, a row at a time."""
    logps = [label_logps(now, row) for row in rows]
    reference = [label_logps(before, row) for row in rows]
    of_role = [config.role_weights.get(row["role"], 1.0) for row in rows]
    if config.objective in ("sft", "weighted"):
        total = 0.0
        for row, factor, mine, theirs in zip(rows, of_role, logps, reference, strict=True):
            for p, q in zip(mine, theirs, strict=True):
                weight = factor * row["weight"]
                total += -weight * p if weight > 0 else -weight * max(p - q, math.log(1 - CLIP))
        return total / sum(map(len, logps))
    ratio: dict[tuple[str, bool], float] = defaultdict(float)
    chosen: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, factor, mine, theirs in zip(rows, of_role, logps, reference, strict=True):
        ratio[row["example"], row["chosen"]] += factor * (sum(mine) - sum(theirs))
        if row["chosen"]:
            chosen[row["example"]] += [(p, factor) for p in mine]
    preference = config.preference
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    if config.objective == "dpo":
        found = [
            -math.log(sigmoid(preference.beta * (ratio[one, True] - ratio[one, False])))
            - preference.sft_weight * sum(p * w for p, w in chosen[one]) / sum(w for _, w in chosen[one])
            for one in chosen
        ]
    else:
        point = max(0.0, float(np.mean(list(ratio.values()))))
        found = [
            1 - sigmoid(preference.beta * (value - point) * (1 if side else -1)) for (_, side), value in ratio.items()
        ]
    return float(np.mean(found))


@pytest.mark.slow
@pytest.mark.parametrize("alone", OBJECTIVES, indirect=True)
def test_the_logged_losses_are_the_defined_ones_and_the_gap_widens(alone: Trained) -> None:
    config, folder = alone.config, alone.folder
    log = {line["step"]: line["dev_loss"] for line in read_log(folder.training / "log.jsonl") if "dev_loss" in line}
    rows, question_of = prepared_rows(config, folder)
    _, dev = split_rows(rows.table, question_of, config.training.dev_fraction, config.seed)
    model = config.models["agent"].path
    before = AutoModelForCausalLM.from_pretrained(model).eval()
    facts = json.loads((folder.adapter / "training.json").read_text())
    card = (folder.adapter / "README.md").read_text()
    assert f"| objective | {config.training.objective} |" in card and "better and worse ones by reward" in card
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

    assert gap(now) > gap(before) + 0.005


@pytest.mark.slow
@pytest.mark.parametrize("alone", ["weighted", "dpo", "kto"], indirect=True)
def test_in_other_micro_batches_and_killed_after_a_checkpoint_it_has_the_same_curve(
    alone: Trained, tmp_path: Path
) -> None:
    _, config, folder = make_attempts(tmp_path, **alone.settings | {"micro_batch": 8})
    with killed_after(5):
        train_round(config, 1)
    assert read_log(folder.training / "log.jsonl")[-1]["step"] == 5 and not folder.adapter.exists()
    train_round(config, 1)
    assert_same(folder, alone.folder, rel=1e-3)  # sums of other micro-batches are rounded differently


@pytest.mark.slow
@pytest.mark.parametrize("alone", ["weighted"], indirect=True)
def test_two_processes_learn_as_one_does(alone: Trained, tmp_path: Path) -> None:
    """Sums over rows; those over pairs are in the test below."""
    path, _, folder = make_attempts(tmp_path, **alone.settings)
    status, said = finish(launch("cpu_ddp.yaml", path))
    assert status == 0, said
    assert_same(folder, alone.folder)


@pytest.mark.slow
@trl_head_on_cpu
def test_sharded_in_bf16_pairs_give_what_one_process_gives(tmp_path: Path) -> None:
    settings = {"objective": "dpo", "batch_size": 12, "max_steps": 4, "eval_steps": 2, "gradient_checkpointing": True}
    folders = []
    for place in ("one", "two"):
        tiny_model(tmp_path / place / "model", tied=False)
        path, _, folder = make_attempts(tmp_path / place, **SETTINGS | settings)
        folders.append(folder)
        if place == "one":
            status, said = finish(start([sys.executable, str(PROGRAM), "--config", str(path)], IN_BF16="1"))
            assert status == 0, said
            continue
        status, said = finish(launch("cpu_fsdp.yaml", path, IN_BF16="1"))
        assert status == 0, said
    assert_same(folders[1], folders[0])
