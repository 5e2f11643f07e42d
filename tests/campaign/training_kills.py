"""SIGKILLs while an adapter is trained, by one process and by two."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from inference.adapters import read_adapter
from ratchet.files import read_log
from ratchet.runfolder import RunFolder
from tests.campaign.trial import Attack, Trial
from tests.conftest import SMOLLM2
from tests.helpers.experiment import ROOT, command, environment, make_experiment
from training.rows import read_rows


@contextmanager
def training(folder: Path, launchers: Sequence[tuple[str, ...]], real: bool) -> Iterator[Trial]:
    """`launchers`: words before train.py, of which a trial draws one; `real`: the model of `make model`."""
    base = make_experiment(folder / "base")
    options = ("--set", f"models.agent.path={SMOLLM2}") if real else ()
    for module in ("index_build", "sampling", "rewards"):
        done = command("-m", module, "--config", str(base), *options)
        assert done.returncode == 0, done.stdout

    def train(run: Path, words: tuple[str, ...]) -> subprocess.Popen[bytes]:
        line = [*words, "train.py", "--config", str(base), *options, "--set", f"run={run}"]
        return subprocess.Popen([sys.executable, *line], cwd=ROOT, env=environment(), start_new_session=True)

    def copied(name: str) -> Path:
        run = folder / name
        subprocess.run(["cp", "-r", str(folder / "base" / "run"), str(run)], check=True)
        return run

    calm = copied("calm")
    began = time.monotonic()
    assert train(calm, launchers[0]).wait() == 0
    seconds, wanted = time.monotonic() - began, _facts(calm)

    def trial(dice: random.Random) -> None:
        run, words = copied(f"{dice.getrandbits(64)}"), dice.choice(launchers)
        for _ in range(2):
            process = train(run, words)
            time.sleep(dice.uniform(0.3, 1.0) * seconds)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert train(run, words).wait() == 0
        assert _facts(run) == wanted

    yield trial


def _facts(run: Path) -> tuple[object, ...]:
    """The steps that were logged, the rows, and the layers of the adapter. Its weights are equal up to rounding."""
    one = RunFolder(run).round(1)
    steps = [line["step"] for line in read_log(one.training / "log.jsonl")]
    return steps, read_rows(one.rows).table.num_rows, sorted(read_adapter(one.adapter).layers)


TWO = tuple(
    ("-m", "accelerate.commands.launch", "--config_file", f"configs/accelerate/cpu_{kind}.yaml")
    for kind in ("ddp", "fsdp")
)
"""DDP and FSDP."""
DONE = "training ends with every step logged once and a readable adapter"
ATTACKS = (
    Attack("kills while training", DONE, partial(training, launchers=((),), real=False), 0, 20, 900.0),
    Attack("kills while two processes train", DONE, partial(training, launchers=TWO, real=False), 0, 10, 1800.0),
    Attack("kills while the real model trains", DONE, partial(training, launchers=((),), real=True), 0, 3, 3600.0),
)
