"""Weights & Biases: what it lacks is said before a model is loaded, and at the start of self-training."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.commands.checks import check_wandb
from ratchet.core.config import ModelConfig, TrainingConfig
from ratchet.core.errors import UserError
from ratchet.training.trainer import trainer_config
from tests.helpers.experiment import Done, command
from tests.helpers.pages import ROOT

KEY = "k" * 40
VARIABLES = ("API_KEY", "IDENTITY_TOKEN_FILE", "BASE_URL", "DISABLED", "MODE", "DIR")


@pytest.fixture(autouse=True)
def _installed_and_logged_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: find("os" if name == "wandb" else name, *more))
    for name in VARIABLES:
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_it_is_off_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "")
    monkeypatch.setenv("WANDB_DIR", "")
    model = ModelConfig(path="m", device="cpu", dtype="float32")
    for mode, reported in (("off", []), ("offline", ["wandb"])):
        made = trainer_config(TrainingConfig(wandb=mode), model, tmp_path, 10, 0, 1)
        assert made.report_to == reported and os.environ["WANDB_MODE"] == mode * bool(reported)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_wandb("off")
    with pytest.raises(UserError, match=r"training\.wandb=offline needs wandb: pip install 'ratchet-agents\[wandb\]'"):
        check_wandb("offline")


def test_offline_needs_no_key_and_online_takes_one_from_the_variable_or_the_file_of_wandb_login(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check_wandb("offline")
    none = (
        r"^training\.wandb=online needs the key of an account on https://api.wandb.ai: run `wandb login`, set .*offline"
    )
    for text in (None, f"machine other.example login user password {KEY}", "machine machine machine"):
        if text:
            (tmp_path / "netrc").write_text(text)
        with pytest.raises(UserError, match=none):
            check_wandb("online")
    (tmp_path / "netrc").write_text(f"machine api.wandb.ai login user password {KEY}")
    check_wandb("online")
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example:8080")
    with pytest.raises(UserError, match=r"account on https://wandb\.example:8080"):
        check_wandb("online")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    check_wandb("online")


def run(folder: Path, *words: str) -> Done:
    config: dict[str, Any] = {
        "run": "run",
        "models": {"agent": {"path": "nobody/nowhere"}},
        "rewards": {"weights": {"f1": 1.0}},
    }
    config |= {"index": {"path": "index", "documents": ["c.yaml"]}, "training": {"wandb": "online"}}
    config["questions"] = {name: {"path": str(ROOT / "demo" / f"{name}.jsonl")} for name in ("train", "dev", "test")}
    config["questions"] |= {"leakage": {"questions": "off"}}
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    return command("-m", "ratchet", *words, "--config", "c.yaml", folder=folder)


@pytest.mark.parametrize("words", [("train",), ("selftrain",), ("selftrain", "--dry-run")])
def test_the_key_is_missed_before_any_work(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 2 and done.stdout.count("\n") == 1, done.stdout
    assert "training.wandb=online needs the key" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def test_a_job_that_trains_is_submitted_with_a_warning(tmp_path: Path) -> None:
    for job, warned in (("round", True), ("index", False)):
        done = run(tmp_path, "slurm", job, "--dry-run")
        assert done.returncode == 0, done.stdout
        assert ("warning: training.wandb=online needs the key" in done.stdout) == warned
