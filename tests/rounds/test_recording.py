"""Stages that a user runs by their own commands are in the ledger, once, and the loop runs the rest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.commands.config import IN_LOOP
from ratchet.commands.recording import recorded_stages
from ratchet.core.config import load_config
from ratchet.core.installed import code_version
from ratchet.core.runfolder import RunFolder
from ratchet.questions.manifest import open_run
from ratchet.rounds.ledger import read_ledger
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.commands import command_of
from tests.helpers.experiment import make_experiment
from tests.helpers.stored import store

build = command_of("index")
sample = command_of("sample")
score = command_of("score")


def recorded(config: Path) -> list[str]:
    return [entry.stage for entry in read_ledger(RunFolder(config.parent / "run"))]


def run(main: Callable[[list[str]], None], config: Path, *arguments: str) -> None:
    main(["--config", str(config), *arguments])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = make_experiment(tmp_path, questions=4)
    run(build, path)
    return path


@pytest.mark.slow
def test_commands_record_their_stages_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recorded(config) == ["index"]
    run(sample, config)
    run(sample, config)
    assert recorded(config) == ["index", "sample"]
    run(score, config)
    assert recorded(config) == ["index", "sample", "score"]
    entry = read_ledger(RunFolder(config.parent / "run"))[-1]
    assert entry.code == code_version(), "a tree that was patched since the run began says so in the stage's entry"
    assert entry.facts["questions"] == 4 and entry.inputs.keys() == {"questions", "trajectories", "config"}
    run(score, config, "--also", "em")
    assert recorded(config) == ["index", "sample", "score", "score"], "the scores changed"


@pytest.mark.slow
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
