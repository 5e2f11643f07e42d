"""The wheel, installed into an empty environment beside another project's `agents`, runs without the checkout.

The environment has the same path and its files the same times in every session, so Numba compiles the kernels once for
each version of their sources, as for a user: some 20 seconds of a core.
"""

from __future__ import annotations

import fcntl
import json
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ratchet.records import content_key
from tests.helpers.experiment import make_experiment
from tests.helpers.pages import ROOT

SECONDS = 1_600_000_000
"""When every file of the wheel was written: Numba keeps a kernel with the time of its source."""


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and an empty folder to work in."""

    environment: Path
    folder: Path

    def run(self, *words: str) -> str:
        """Run a program of the environment and return what it printed; it must end well. Modules that it or the test
        starts by `python -m` find torch loaded (tests/preloaded), and nothing of the checkout."""
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run(
            [str(self.environment / "bin" / words[0]), *words[1:]],
            cwd=self.folder,
            env={**kept, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "tests" / "preloaded")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder for the environment, always the same one, which this process has for itself."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "ratchet" / f"wheel-of-tests-{content_key(str(ROOT))[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, place: Path) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in tracked:
        if (ROOT / name).is_file() and not name.startswith(("tests/", "benchmarks/", "docs/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = folder / "wheels"
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
    subprocess.run(build, check=True)
    [wheel] = wheels.glob("*.whl")
    environment = place / "environment"
    venv.create(environment, clear=True, with_pip=False)
    python = str(environment / "bin" / "python")
    install = [*pip, "--python", python, "install", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    subprocess.run(install, check=True)
    [packages] = environment.glob("lib/python*/site-packages")
    for module in (packages / "ratchet").rglob("*.py"):
        os.utime(module, (SECONDS, SECONDS))
    assert {path.name for path in packages.iterdir() if not path.name.endswith(".dist-info")} <= {"ratchet"}
    # The tests' own packages, for the dependencies; .pth files in them, as that of an editable install, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (packages / "agents").mkdir()
    (packages / "agents" / "__init__.py").write_text("raise ImportError('this is another project')\n")
    work = folder / "work"
    work.mkdir()
    return Installed(environment, work)


@pytest.mark.slow
def test_every_module_of_the_wheel_is_below_ratchet_and_imports_only_there(installed: Installed) -> None:
    script = str(ROOT / "tests" / "helpers" / "import_wheel.py")
    assert installed.run("python", script).strip().endswith("site-packages/ratchet")


@pytest.mark.slow
def test_a_round_is_run_by_the_wheel(installed: Installed) -> None:
    """Every stage as a process, without the checkout: the planned commands name the modules of the wheel."""
    config = make_experiment(installed.folder)
    planned = installed.run("ratchet", "selftrain", "--config", config.name, "--dry-run")
    assert " -m ratchet.sampling " in planned and " -m ratchet.train " in planned
    installed.run("ratchet", "selftrain", "--config", config.name)
    assert (installed.folder / "run" / "report.html").exists()
    manifest = json.loads((installed.folder / "run" / "manifest.json").read_text())
    assert manifest["code"].startswith("wheel ")


@pytest.fixture(scope="module")
def rewrite() -> Callable[[str], str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setuptools.setup", lambda **_: None)
        found: dict[str, Any] = runpy.run_path(str(ROOT / "setup.py"))
    rewriting: Callable[[str], str] = found["rewrite_imports"]
    return rewriting


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from agents.core import x\n", "from ratchet.agents.core import x\n"),
        (
            "from agents import (\n    a,\n    b as agents,\n)\n",
            "from ratchet.agents import (\n    a,\n    b as agents,\n)\n",
        ),
        ("import agents", "from ratchet import agents"),
        ("import train as t", "import ratchet.train as t"),
        (
            "import questions.benchmarks\n",
            "import ratchet.questions.benchmarks as _questions_benchmarks; from ratchet import questions\n",
        ),
        ("if x:\n    import os, agents  # both\n", "if x:\n    import os; from ratchet import agents  # both\n"),
        ("s = '''é'''; from rewards import y\n", "s = '''é'''; from ratchet.rewards import y\n"),
    ],
)
def test_imports_are_rewritten(rewrite: Callable[[str], str], before: str, after: str) -> None:
    assert rewrite(before) == after


@pytest.mark.parametrize(
    "source",
    [
        "text = 'from agents import x'\n",
        '"""\nimport agents\n"""\n',
        "from ratchet.config import agents\nimport numpy\n",
        "from . import agents\nfrom .agents import x\n",
        "agents = 1  # import agents\n",
        "import agentsmith, trainer\n",
    ],
)
def test_what_is_no_import_of_ours_stays(rewrite: Callable[[str], str], source: str) -> None:
    assert rewrite(source) == source
