"""Configs: strict, helpful, overridable; run folders that refuse another config."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.commands.config import open_config
from ratchet.core.config import Config, load_members
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from ratchet.questions.manifest import open_run
from tests.helpers.configs import SPLITS, write_config

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name != "accelerate")
MINIMAL: dict[str, Any] = {
    "run": "runs/x",
    "models": {"agent": {"path": "m"}, "judge": {"path": "j"}},
    "index": {"path": "i"},
    "questions": {name: {"path": f"{name}.jsonl"} for name in ("train", "dev", "test")},
}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, **changes}))
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_of_the_project_loads(path: Path) -> None:
    models = open_config(path).models.values()
    assert {model.device for model in models if model.engine == "local"} <= {"cpu"}


def test_the_defaults_are_the_papers_settings(tmp_path: Path) -> None:
    config = open_config(write(tmp_path))
    assert (config.sampling.samples, config.sampling.temperature, config.sampling.frozen_temperature) == (8, 0.7, 0.1)
    assert config.rewards.weights == {"correctness": 4.0, "faithfulness": 1.0}
    assert (config.rewards.runs.least, config.rewards.runs.most, config.rewards.temperature) == (5, 5, 0.5)
    assert config.rewards.select.ties == 3
    training = config.training
    assert (training.lora.r, training.learning_rate) == (16, 1e-4)
    assert (training.warmup_steps, training.max_steps, training.batch_size) == (50, 5000, 128)
    assert (training.max_length, training.eval_steps, config.evaluation.temperature) == (16_000, 500, 0.1)
    assert config.models["agent"].max_context == 32_000
    assert (config.index.chunk_tokens, config.index.chunk_overlap) == (512, 80)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"max_steps": None}}, r"training\.max_steps: .*valid integer, got null; .*leave the key out"),
        ({"training": None}, r"training: .*got null; .*leave the key out"),
        ({"sampling": {"samples": 0}}, r"sampling\.samples: .*greater than 0, got 0"),
        ({"system": {"roles": {"answerer": {"model": "judge"}}}}, r"system\.roles\.answerer: is trainable but played"),
        ({"index": {"path": "i", "chunk_overlap": 600}}, "chunk_overlap must be smaller"),
        ({"evaluation": {"benchmarks": {"nq": {}}}}, r"evaluation\.benchmarks\.nq: .*path is missing"),
        ({"evaluation": {"benchmarks": {"nq": {"path": "hub"}}}}, r"evaluation\.benchmarks\.nq: .*name a benchmark"),
        ({"evaluation": {"benchmarks": {"nq": {"path": "x", "split": "dev"}}}}, "name the benchmark as well"),
        ({"evaluation": {"benchmarks": {"nq": {"benchmark": "nq", "format": "flashrag"}}}}, "leave it out"),
        ({"evaluation": {"benchmarks": {"nq": {"path": "x", "rows": [9, 5]}}}}, "counted from 0"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_config(write(tmp_path, **changes))


def test_overrides_are_typed_and_checked(tmp_path: Path) -> None:
    path = write(tmp_path)
    config = open_config(path, ["sampling.samples=3", "training.epochs=1.5", "questions.train.rows=[0, 5]"])
    assert (config.sampling.samples, config.training.epochs) == (3, 1.5)
    assert config.questions.train.rows == (0, 5)
    empty = write(tmp_path, training={"epochs": 2}, memory=None)
    assert open_config(empty, ["training.epochs=null"]).training.epochs is None
    memory = open_config(empty, ["memory.sequential=true"]).memory
    assert memory is not None and memory.sequential
    with pytest.raises(UserError, match=r"expected key\.path=value"):
        open_config(path, ["sampling.samples"])
    with pytest.raises(UserError, match="'run' holds a value"):
        open_config(path, ["run.x=1"])


@pytest.mark.parametrize("text", ["", "- 1\n", "a: [\n"])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UserError, match=r"c\.yaml"):
        open_config(tmp_path / "c.yaml")


def run_config(folder: Path) -> Config:
    for name in SPLITS:
        (folder / f"{name}.jsonl").write_text('{"id": "1", "text": "?"}\n')
    return open_config(write_config(folder, models=MINIMAL["models"]))


def test_a_run_folder_keeps_its_config_and_refuses_another_with_the_difference(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    run = open_run(config)
    assert yaml.safe_load(run.config.read_text())["sampling"]["samples"] == 8
    manifest = json.loads(run.manifest.read_text())
    assert manifest["packages"]["torch"] and len(manifest["questions"]["train"]["file"]) == 64
    open_run(config)
    sample_something(run)
    other = config.model_copy(update={"sampling": config.sampling.model_copy(update={"samples": 4})})
    with pytest.raises(UserError, match=r"sampling\.samples: 8 there, 4 now"):
        open_run(other)


def sample_something(run: RunFolder) -> None:
    run.round(1).trajectories.mkdir(parents=True)
    (run.round(1).trajectories / "part-0-of-1.jsonl").write_text("{}\n")


def test_a_run_folder_without_trajectories_binds_nothing(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    run = open_run(config)
    other = config.model_copy(update={"seed": 5, "sampling": config.sampling.model_copy(update={"samples": 4})})
    open_run(other)
    assert yaml.safe_load(run.config.read_text())["sampling"]["samples"] == 4
    assert json.loads(run.manifest.read_text())["seed"] == 5


def test_what_no_trajectory_depends_on_may_change_on_a_run(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    sample_something(open_run(config))
    leakage = config.questions.leakage.model_copy(update={"questions": "warn"})
    changed = {
        "questions": config.questions.model_copy(update={"leakage": leakage}),
        "training": config.training.model_copy(update={"epochs": 9.0}),
    }
    open_run(config.model_copy(update=changed))
    (RunFolder(config.folder).round(1).training).mkdir()
    with pytest.raises(UserError, match=r"training\.epochs: 9\.0 there, None now"):
        open_run(config)


def test_members_give_what_is_left_out_and_must_train_one_model(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = write(tmp_path / "a", seed=7, training={"batch_size": 8})
    second = write(tmp_path / "b", models={**MINIMAL["models"], "agent": {"path": "other"}})
    shared = tmp_path / "shared.yaml"
    shared.write_text(yaml.safe_dump({"run": "runs/both", "members": {"a": str(first), "b": str(second)}}))
    config = open_config(shared, ["training.epochs=2"])
    assert (config.run, config.seed, config.training.epochs) == ("runs/both", 7, 2)
    assert config.training.batch_size == 8, "an override changes one key of a section that a member gave"
    with pytest.raises(UserError, match=r"members\.b: .* trains 'other', and the shared adapter is for 'm'"):
        load_members(config)
    second.write_text(first.read_text())
    assert [member.seed for member in load_members(config).values()] == [7, 7]
    assert open_config(shared).training.batch_size == 8


def test_a_run_can_be_scored_again_under_other_weights(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    open_run(config)
    other = config.model_copy(update={"rewards": config.rewards.model_copy(update={"weights": {"correctness": 1.0}})})
    run = open_run(other)
    assert yaml.safe_load(run.config.read_text())["rewards"]["weights"] == {"correctness": 1.0}
