"""Shared by all tests: no network, and tests marked `model` run only where the real model folder is."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import rmtree, which

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as for commands (`ratchet.command`)
# A job that a script started in the background ignores Ctrl-C, and so would every process that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent
SMOLLM2 = ROOT / "models" / "smollm2-135m-instruct"
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
INSPECT = ROOT / ".venv-inspect" / "bin" / "python"
SERVER = Path(__file__).parent / "preloaded" / "server.py"


def missing_for(mark: str) -> str:
    """What a test with this mark wants and is not here; empty where all is here."""
    if mark in ("model", "vllm") and not (SMOLLM2 / "config.json").exists():
        return f"{SMOLLM2} is not there; `make model` makes it"
    if mark == "vllm" and not (VLLM.parent.parent / "installed").exists():
        return f"{VLLM} is not there; `make vllm` installs it"
    if mark == "inspect" and not (INSPECT.parent.parent / "installed").exists():
        return f"{INSPECT} is not there; `make inspect` installs it"
    if mark == "cluster" and os.geteuid() != 0:
        return "only root can start a SLURM for a test"
    if mark == "cluster" and (lacking := [p for p in ("slurmctld", "slurmd", "munged", "sbatch") if not which(p)]):
        return f"{', '.join(lacking)} not installed; `make slurm` installs them"
    return ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run here and say why. Continuous integration has everything: there the same is a failure."""
    for mark in ("model", "vllm", "inspect", "cluster"):
        if mark in item.keywords and (reason := missing_for(mark)):
            (pytest.fail if os.environ.get("RATCHET_CI") else pytest.skip)(reason)


def pytest_configure(config: pytest.Config) -> None:
    """Start the server of tests/preloaded, which all processes that share the tests use and which has nothing loaded
    yet, and what compiles the kernels for them."""
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.mkdtemp(prefix="preloaded-")
    os.environ["RATCHET_PRELOADED"] = f"{folder}/socket"
    server = subprocess.Popen([sys.executable, str(SERVER), f"{folder}/socket"], stdin=subprocess.PIPE)
    compiling = None
    if config.getoption("numprocesses", None):
        os.environ["RATCHET_KERNELS"] = str(Path(folder, "kernels"))
        with Path(folder, "kernels").open("w") as lock:  # the process that compiles holds it to its end
            fcntl.flock(lock, fcntl.LOCK_EX)
            command = [sys.executable, "-m", "tests.helpers.warm_kernels"]
            compiling = subprocess.Popen(command, cwd=ROOT, stdin=lock, stderr=subprocess.DEVNULL)

    def end() -> None:
        server.communicate()
        if compiling:
            compiling.wait()
        rmtree(folder)

    config.add_cleanup(end)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Wait until the kernels are compiled."""
    if hasattr(session.config, "workerinput"):
        with Path(os.environ["RATCHET_KERNELS"]).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests first, so that processes that share the tests end at about the same time."""
    long = {item.path for item in items if {"vllm", "cluster", "slow"} & set(item.keywords)}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True)
def _tables_of_full_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not a terminal gets complete tables, whatever the terminal is that the tests were started in."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of the real SmolLM2-135M-Instruct; mark the test with `@pytest.mark.model`."""
    return SMOLLM2
