"""Stages run by hand whose inputs are incomplete or out of date: refused, or recorded with --anyway."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from ratchet.rounds.ledger import read_ledger
from tests.helpers.commands import command_of
from tests.helpers.experiment import command, make_experiment

evaluate = command_of("evaluate")
export = command_of("export")
build = command_of("index")
report = command_of("report")
sample = command_of("sample")
score = command_of("score")
selftrain = command_of("selftrain")
train = command_of("train")
rows = command_of("show")

Main = Callable[[list[str]], None]


def run(main: Main, config: Path, *arguments: str) -> None:
    main(["--config", str(config), *arguments])


def rows_by_hand(arguments: list[str]) -> None:
    rows(arguments)


def status(config: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    command_of("status")(["--config", str(config)])
    return capsys.readouterr().out


def refused(main: Main, config: Path, *arguments: str) -> str:
    with pytest.raises(UserError) as error:
        run(main, config, *arguments)
    return str(error.value)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = make_experiment(tmp_path, questions=4)
    run(build, path)
    return path


@pytest.mark.slow
def test_scoring_a_part_of_the_trajectories_is_refused_or_recorded(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(config.parent / "run")
    run(sample, config, "--part", "0/2")
    said = refused(score, config)
    assert "'sample' of round 1 is not complete (8 of 16 trajectories are missing)" in said
    assert f"\n  ratchet sample --config {config} --round 1\n" in said and "--anyway" in said
    assert not folder.round(1).selection.exists()
    run(score, config, "--anyway")
    assert read_ledger(folder)[-1].anyway.startswith("'sample' of round 1 is not complete")
    assert "done with --anyway: 'sample' of round 1" in status(config, capsys)
    for main in (rows_by_hand, train):
        said = refused(main, config)
        assert "8 of 16 trajectories are missing" in said and "\n  ratchet score --config" in said, main
    assert "'sample' of round 1" in refused(export, config, "--dataset")
    run(export, config, "--dataset", "--anyway")
    record = folder.path / "export" / "round-1" / "dataset" / "export.json"
    assert "8 of 16" in json.loads(record.read_text())["anyway"]
    run(sample, config)
    said = refused(rows_by_hand, config)
    assert "'score and select' of round 1 has to be done again (its input changed: trajectories)" in said
    assert "ratchet sample" not in said
    run(score, config)
    run(rows_by_hand, config)
    assert not read_ledger(folder)[-1].anyway and "--anyway" not in status(config, capsys)


@pytest.mark.slow
def test_what_was_run_where_the_ledger_does_not_see_it_may_be_used(config: Path) -> None:
    run(sample, config)
    run(score, config)
    RunFolder(config.parent / "run").ledger.unlink()
    run(rows_by_hand, config)
    run(score, config)


@pytest.mark.slow
def test_an_adapter_of_an_outdated_selection_is_trained_again_and_the_loop_resumes(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(sample, config, "--part", "0/2")
    run(score, config, "--anyway")
    run(train, config, "--anyway")
    run(sample, config)
    said = refused(evaluate, config)
    assert "\n  ratchet score" in said and f"\n  ratchet train --config {config} --round 1\n" in said
    assert "'score and select' of round 1" in refused(export, config, "--adapter-only")
    run(evaluate, config, "--anyway")
    run(report, config)
    page = (config.parent / "run" / "report.html").read_text()
    assert "evaluate of round 1 was done with --anyway: &#39;score and select&#39; of round 1 has to be" in page
    assert (
        "<li>&#39;score and select&#39; of round 1 has to be done again (its input changed: trajectories).</li>" in page
    )
    assert "It resumes with 'score and select' of round 1" in status(config, capsys)
    done = command("selftrain.py", "--config", str(config))
    assert done.returncode == 0, done.stdout
    folder = config.parent / "run" / "round-1"
    assert "adapter was trained with other rows; it is set aside as adapter.outdated-1" in done.stdout
    assert (folder / "adapter.outdated-1" / "training.json").exists() and (folder / "training.outdated-1").is_dir()
    assert "--anyway" not in status(config, capsys)
    run(report, config)
    assert "--anyway" not in (config.parent / "run" / "report.html").read_text()
    for main in (score, train, evaluate):
        run(main, config)
