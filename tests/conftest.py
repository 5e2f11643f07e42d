"""Shared by all tests: no network, and tests marked `model` run only where the real model folder is."""

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree, which
from typing import Any

import hypothesis
import pytest

from tests.helpers.browser import CHROMIUM

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as for commands (`commands.arguments`)
# A job that a script started in the background ignores Ctrl-C, and so would every process that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is: no test may fail by it.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")
# Of `make test-fast`: a fifth of the examples of the tests that name no number of their own.
hypothesis.settings.register_profile("fast", hypothesis.settings.get_profile("untimed"), max_examples=20)

ROOT = Path(__file__).parent.parent
SMOLLM2 = ROOT / "models" / "smollm2-135m-instruct"
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
PRELOADED = Path(__file__).parent / "preloaded"
LEAVES_OUT = re.compile(r"not \w+( and not \w+)*")


def missing_for(mark: str) -> str:
    """What a test with this mark wants and is not here; empty where all is here."""
    if mark in ("model", "vllm") and not (SMOLLM2 / "config.json").exists():
        return f"{SMOLLM2} is not there; `make model` makes it"
    if mark == "vllm" and not (VLLM.parent.parent / "installed").exists():
        return f"{VLLM} is not there; `make vllm` installs it"
    if mark == "cluster" and os.geteuid() != 0:
        return "only root can start a SLURM for a test"
    if mark == "cluster" and (lacking := [p for p in ("slurmctld", "slurmd", "munged", "sbatch") if not which(p)]):
        return f"{', '.join(lacking)} not installed; `make slurm` installs them"
    return ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run here and say why. Continuous integration has everything: there the same is a failure."""
    for mark in ("model", "vllm", "cluster"):
        if mark in item.keywords and (reason := missing_for(mark)):
            (pytest.fail if os.environ.get("RATCHET_CI") else pytest.skip)(reason)


def pytest_configure(config: pytest.Config) -> None:
    """Start the server of tests/preloaded, which all processes that share the tests use, and what compiles the kernels
    for them."""
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    folder = tempfile.mkdtemp(prefix="preloaded-")
    os.environ["RATCHET_PRELOADED"] = f"{folder}/commands"
    started = [start_server(os.environ["RATCHET_PRELOADED"])]
    if config.getoption("numprocesses", None):
        command = [sys.executable, "-m", "tests.helpers.warm_kernels"]
        started.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def end() -> None:
        for each in started:
            each.communicate()
        rmtree(folder)

    config.add_cleanup(end)


def start_server(address: str) -> subprocess.Popen[bytes]:
    """Start the server of tests/preloaded behind a socket that listens from now on."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        command = [sys.executable, str(PRELOADED / "server.py"), str(listener.fileno())]
        return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file whose tests all have a mark that `-m "not this and not that"` leaves out, without importing it:
    the clients of OpenAI, Anthropic and MCP alone take a fifth of what all imports take."""
    if collection_path.suffix != ".py" or not LEAVES_OUT.fullmatch(config.option.markexpr):
        return None
    line = re.search(r"^pytestmark = (.+)$", collection_path.read_text(), re.MULTILINE)
    marks = set(re.findall(r"pytest\.mark\.(\w+)", line[1])) if line else set()
    return True if marks & set(re.findall(r"not (\w+)", config.option.markexpr)) else None


def pytest_collection() -> None:
    """Collect no garbage while modules are imported: there is none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of garbage collections, of which transformers' trainer starts a full one at every
    training: each would take as long as a test's training. Python's own come after more objects than its default of
    700."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests mostly wait first, and then those with the most long tests, so that processes that share the
    tests are all busy, and end at about the same time."""
    waiting = {item.path for item in items if {"vllm", "cluster"} & set(item.keywords)}
    long = Counter(item.path for item in items if "slow" in item.keywords)
    items.sort(key=lambda item: (item.path not in waiting, -long[item.path]))


@pytest.fixture(autouse=True)
def _tables_of_full_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not a terminal gets complete tables, whatever the terminal is that the tests were started in."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """No test can show that fsync works, which only a loss of power does, and on a busy disk the tests wait for nothing
    else. Commands in processes of their own do call it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of the real SmolLM2-135M-Instruct; mark the test with `@pytest.mark.model`."""
    return SMOLLM2


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for a test with the mark `needs_chromium`; no async test may follow in its file."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()
