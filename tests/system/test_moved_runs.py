"""A run folder of another version, and one that goes away while a command writes into it: errors that name it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import yaml

from ratchet import read_run
from ratchet.commands.experiment import Experiment
from ratchet.core.errors import UserError
from ratchet.questions.manifest import VERSION
from tests.helpers.commands import command_of
from tests.helpers.experiment import command, make_experiment
from tests.helpers.waiting import wait_for

evaluate = command_of("evaluate")
build = command_of("index")
sample = command_of("sample")
score = command_of("score")
train = command_of("train")

COMMANDS = (
    ("status",),
    ("sample",),
    ("score",),
    ("score", "whatif"),
    ("show",),
    ("train",),
    ("choose",),
    ("promote", "--round", "1"),
    ("evaluate",),
    ("evaluate", "table"),
    ("report",),
    ("report", "--follow", "--port", "0"),
    ("export", "--dataset"),
    ("trace",),
    ("plan",),
    ("selftrain",),
    ("index",),
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return make_experiment(tmp_path, questions=4)


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, VERSION + 1])
def test_a_run_folder_of_another_version_is_refused_wherever_it_is_opened(config: Path, version: int) -> None:
    run = config.parent / "run"
    for split in ("trajectories", "scores"):
        (run / "round-1" / split).mkdir(parents=True)
    (run / "config.yaml").write_text(config.read_text())
    (run / "manifest.json").write_text(json.dumps({"version": version} if version > 1 else {}))
    said = f"{run} is a run folder of version {version}, and this is version {VERSION} of Ratchet's run folders"
    for words in COMMANDS:
        done = command("-m", "ratchet", *words, "--config", str(config))
        assert done.returncode == 2 and said in done.stdout and "--set run=runs/NEW" in done.stdout, (words, done)
    for call in (lambda: read_run(run), lambda: Experiment(config)):
        with pytest.raises(UserError, match="is a run folder of version"):
            call()


def move_once_written(run: Path, pattern: str, away: Path) -> None:
    wait_for(lambda: any(path.stat().st_size for path in run.glob(pattern)), seconds=300)
    run.rename(away)


@pytest.mark.slow
def test_a_run_folder_that_moves_away_is_an_error_that_names_it(tmp_path: Path) -> None:
    config = make_experiment(tmp_path, questions=4, delay=0.05)
    (tmp_path / "slow.py").write_text(SLOW)
    values = yaml.safe_load(config.read_text())
    values["rewards"]["weights"] = {"f1": 4.0, str(tmp_path / "slow.py"): 1.0}
    values["training"] |= {"max_steps": 30, "eval_steps": 30}
    config.write_text(yaml.safe_dump(values))
    run, away = tmp_path / "run", tmp_path / "away"
    build(["--config", str(config)])
    written = {
        sample: "round-1/trajectories/*.jsonl",
        score: "round-1/scores/*.jsonl",
        train: "round-1/training/log.jsonl",
        evaluate: "arms/**/*.jsonl",
    }
    for main, pattern in written.items():
        moving = threading.Thread(target=move_once_written, args=(run, pattern, away))
        moving.start()
        with pytest.raises(UserError) as error:
            main(["--config", str(config)])
        moving.join()
        assert f"{run}: was moved away or deleted while this command wrote into it" in str(error.value), main
        assert not run.exists(), "it was made again"
        away.rename(run)
        main(["--config", str(config)])


SLOW = """
import time


def score(question, trajectory):
    time.sleep(0.05)
    return 1.0
"""
