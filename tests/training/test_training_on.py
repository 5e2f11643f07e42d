"""Training an adapter on, as later rounds do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ratchet.commands.train import train_round
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import read_log
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.training.lora import add_lora, load_model, start_from_adapter
from tests.helpers.world import make_run, tiny_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, RoundFolder]:
    folder = tmp_path_factory.mktemp("trained")
    tiny_model(folder / "model")
    _, config, round_folder = make_run(folder, max_steps=10, eval_steps=5, learning_rate=0.05)
    train_round(config, 1)
    return config, round_folder


def second_round(config: Config, first: RoundFolder) -> RoundFolder:
    """A second round that kept the same as the first."""
    second = RunFolder(config.folder).round(2)
    shutil.rmtree(second.path, ignore_errors=True)
    shutil.copytree(first.trajectories, second.trajectories)
    shutil.copy(first.selection, second.selection)
    return second


def log(folder: RoundFolder) -> list[dict[str, Any]]:
    return read_log(folder.training / "log.jsonl")


@pytest.mark.slow
def test_the_second_round_goes_on_where_the_first_ended(
    trained: tuple[Config, RoundFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    config, first = trained
    second = second_round(config, first)
    train_round(config, 2, first.adapter)
    best = json.loads((first.adapter / "training.json").read_bytes())["dev_loss"]
    assert log(first)[0]["dev_loss"] > best == pytest.approx(log(second)[0]["dev_loss"], rel=1e-5)
    made_of = json.loads((second.adapter / "training.json").read_bytes())["made_of"]
    assert len(made_of["starting adapter"]) == 16
    assert "the adapter that it started from" in (second.adapter / "README.md").read_text()
    train_round(config, 2, first.adapter)
    assert "is complete" in capsys.readouterr().err
    train_round(config, 2)
    assert "was trained with other starting adapter; it is set aside" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"r": 2}, "r 4 there, 2 here"),
        ({"lora_alpha": 99}, "lora_alpha 8 there, 99 here"),
        ({"target_modules": ["q_proj"]}, "there, not trained here; .* and 21 more"),
    ],
)
def test_another_shape_is_refused_by_name(trained: tuple[Config, RoundFolder], lora: dict[str, Any], said: str) -> None:
    config, first = trained
    model = add_lora(load_model(config.models["agent"]), config.training.lora.model_copy(update=lora), seed=1)
    with pytest.raises(UserError, match=said):
        start_from_adapter(model, first.adapter)


def test_weights_of_another_shape_are_refused(trained: tuple[Config, RoundFolder], tmp_path: Path) -> None:
    config, first = trained
    model = add_lora(load_model(config.models["agent"]), config.training.lora, seed=1)
    shutil.copytree(first.adapter, tmp_path / "cut")
    weights = load_file(first.adapter / "adapter_model.safetensors")
    name = next(name for name in weights if "lora_A" in name)
    save_file({**weights, name: weights[name][:, :-1].contiguous()}, tmp_path / "cut" / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"is \(.*\) there, \(.*\) here"):
        start_from_adapter(model, tmp_path / "cut")
