"""Stages that a user runs by their own commands are in the ledger, once, and the loop runs the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from commands.arguments import IN_LOOP, recorded_stages
from commands.evaluate import main as evaluate
from commands.index import main as build
from commands.report import main as report
from commands.sample import main as sample
from commands.score import main as score
from commands.selftrain import main as selftrain
from commands.train import main as train
from questions.manifest import open_run
from ratchet.config import load_config
from ratchet.runfolder import RunFolder
from rounds.ledger import read_ledger
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.experiment import command, make_experiment
from tests.helpers.stored import store


def recorded(config: Path) -> list[str]:
    return [entry.stage for entry in read_ledger(RunFolder(config.parent / "run"))]


def run(main: Callable[[list[str]], None], config: Path, *arguments: str) -> None:
    main(["--config", str(config), *arguments])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = make_experiment(tmp_path, questions=4)
    run(build, path)
    return path


def test_commands_record_their_stages_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recorded(config) == ["index"]
    run(sample, config)
    run(sample, config)
    assert recorded(config) == ["index", "sample"]
    run(score, config)
    assert recorded(config) == ["index", "sample", "score"]
    entry = read_ledger(RunFolder(config.parent / "run"))[-1]
    assert entry.facts["questions"] == 4 and entry.inputs.keys() == {"questions", "trajectories", "config"}
    run(score, config, "--also", "em")
    assert recorded(config) == ["index", "sample", "score", "score"], "the scores changed"


def test_a_part_of_the_questions_is_not_the_stage(config: Path) -> None:
    run(sample, config, "--part", "0/2")
    assert recorded(config) == ["index"]
    run(sample, config, "--part", "1/2")
    assert recorded(config) == ["index", "sample"]


def test_what_is_no_stage_of_the_run_is_not_recorded(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = save_adapter(config.parent / "other")
    read = load_config(config)
    open_run(read)
    store(RunFolder(read.folder).round(1).trajectories, ())
    with recorded_stages(read, "sample", adapter=adapter):
        pass
    with recorded_stages(read, "sample", number=2):
        pass
    with pytest.raises(ZeroDivisionError), recorded_stages(read, "sample"):
        _ = 1 / 0
    monkeypatch.setenv(IN_LOOP, "1")
    with recorded_stages(read, "sample"):
        pass
    assert recorded(config) == ["index"]
    monkeypatch.delenv(IN_LOOP)
    with recorded_stages(read, "sample"):
        pass
    assert recorded(config) == ["index", "sample"]


@pytest.mark.slow
def test_status_shows_stages_that_were_run_by_hand_and_the_loop_runs_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_experiment(tmp_path, questions=4)
    for main in (build, sample, score, train):
        run(main, config)
    by_hand = ["index", "sample", "score", "train"]
    assert recorded(config) == by_hand
    capsys.readouterr()
    selftrain(["status", "--config", str(config)])
    shown = capsys.readouterr().out
    states = {line.split()[1]: line.split() for line in shown.splitlines() if line.split()[:1] == ["1"]}
    assert all("done" in states[name] for name in ("index", "sample", "score", "train")), shown
    assert "It resumes with 'evaluate' of round 1" in shown
    done = command("selftrain.py", "--config", str(config))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": done before") == 4
    assert recorded(config) == [*by_hand, "evaluate", "report"]
    run(evaluate, config)
    run(report, config)
    capsys.readouterr()
    selftrain(["status", "--config", str(config)])
    assert "Every stage is done" in capsys.readouterr().out
