"""A run folder of another version is refused wherever it is opened."""

import json
from pathlib import Path

import pytest

from ratchet import read_run
from ratchet.commands.experiment import Experiment
from ratchet.core.errors import UserError
from ratchet.questions.manifest import VERSION
from tests.helpers.experiment import command, make_experiment

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
