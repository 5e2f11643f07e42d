"""Help and a run's status come at once: no command imports a heavy library before it has read its arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.commands.config import open_config
from ratchet.commands.main import COMMANDS
from ratchet.questions.manifest import open_run
from tests.helpers.experiment import command, make_experiment

ROOT = Path(__file__).parents[2]
HEAVY = ("accelerate", "datasets", "matplotlib", "peft", "torch", "transformers", "trl", "xgrammar")
"""Not numba: the search engine's module is compiled by decorators, so whatever opens an index imports it."""

PROGRAM = f"""
import contextlib, io, json, runpy, sys

sys.path.insert(0, "")
found = {{}}
for words in json.loads(sys.argv[1]):
    module, *rest = words
    before = set(sys.modules)
    sys.argv = [module, *rest, "--help"]
    shown, status = io.StringIO(), None
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code
    heavy = sorted(set({HEAVY}) & (set(sys.modules) - before))
    found[" ".join(words)] = [status or 0, shown.getvalue().startswith("usage: "), heavy]
print(json.dumps(found))
"""


def commands() -> list[list[str]]:
    """The module of every command with its first words."""
    return [["train"], ["selftrain"], *(["ratchet", name] for name in COMMANDS)]


@pytest.fixture(scope="module")
def helped() -> dict[str, tuple[int, bool, list[str]]]:
    """For each command: the exit status of its --help, whether it shows usage, and the heavy libraries it imported.

    One process asks all of them, so a library is listed under the first command that imports it.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands())], cwd=ROOT, capture_output=True, text=True, check=True
    )
    result: dict[str, tuple[int, bool, list[str]]] = json.loads(done.stdout)
    return result


def test_every_command_has_help(helped: dict[str, tuple[int, bool, list[str]]]) -> None:
    assert {words: (status, usage) for words, (status, usage, _) in helped.items() if status or not usage} == {}


def test_help_imports_nothing_heavy(helped: dict[str, tuple[int, bool, list[str]]]) -> None:
    assert {words: heavy for words, (_, _, heavy) in helped.items() if heavy} == {}


def test_status_imports_nothing_that_samples_trains_or_searches(tmp_path: Path) -> None:
    """Of a whole config, whose plug-ins it loads, and a run folder."""
    path = make_experiment(tmp_path)
    open_run(open_config(path))
    program = "import sys; from ratchet.commands.main import main; main(); print(*sys.modules, file=sys.stderr)"
    words = [sys.executable, "-c", program, "status", "--config", str(path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "It resumes with 'index' of round 1" in done.stdout
    unneeded = {*HEAVY, "httpx", "jinja2", "jsonschema", "numba", "numpy", "pyarrow", "scipy", "urllib.request"}
    assert unneeded & set(done.stderr.split()) == set()


def test_a_search_loads_no_plug_in_and_works_beside_one_that_cannot_run(tmp_path: Path) -> None:
    path = make_experiment(tmp_path)
    assert command("-m", "ratchet", "index", "--config", str(path)).returncode == 0
    wrong = ["--config", str(path), "--set", "system.settings.no_such_setting=1", "harbour"]
    # A kernel that is not in the cache is compiled, for which more is imported.
    assert command("-m", "ratchet", "search", *wrong).returncode == 0
    program = "import sys; from ratchet.commands.main import main; main(); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program, "search", *wrong], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("  1  "), done.stderr
    unneeded = {*HEAVY, "ratchet.agents", "ratchet.rewards", "ratchet.training", "asyncio", "scipy.linalg"}
    assert unneeded & set(done.stderr.split()) == set()
    assert "no_such_setting" in command("-m", "ratchet", "sample", *wrong[:-1]).stdout
