"""Importing the packages changes nothing in the importing process; a command sets what it needs when it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORTING = """
import os, signal, sys, warnings
def state():
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return dict(os.environ), list(warnings.filters), handlers
before = state()
import ratchet, ratchet.retrieval, ratchet.agents
assert state() == before
assert not {"torch", "numba", "transformers"} & sys.modules.keys()
import ratchet.retrieval.sparse.engine
assert dict(os.environ) == before[0]
"""
STARTING = """
import importlib, json, os, sys
found = {}
for module in sys.argv[1:]:
    importlib.import_module(module)
    libraries = open("/proc/self/maps").read()
    from ratchet.commands.main import run_command
    asked = os.environ.get("OMP_WAIT_POLICY")
    run_command(lambda: found.update({module: ["libgomp" in libraries, os.environ["OMP_WAIT_POLICY"]]}))
    if not asked:
        del os.environ["OMP_WAIT_POLICY"]
print(json.dumps(found))
"""


def run_python(code: str, *arguments: str, **environment: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "NUMBA_CACHE_DIR")}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=kept | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_importing_changes_neither_environment_nor_warnings_nor_signal_handlers() -> None:
    run_python(IMPORTING)


@pytest.mark.parametrize("module", ["ratchet.commands.main", "train", "selftrain"])
def test_a_command_sets_how_openmp_waits_before_its_library_is_loaded(module: str) -> None:
    """(Whether OpenMP's library is loaded once it is imported, how OpenMP waits as it starts)."""
    assert json.loads(run_python(STARTING, module))[module] == [False, "passive"]


def test_a_users_own_wait_policy_is_kept() -> None:
    assert json.loads(run_python(STARTING, "train", OMP_WAIT_POLICY="active"))["train"][1] == "active"


@pytest.mark.slow
def test_kernels_are_kept_in_a_folder_named_after_their_sources_or_where_the_user_says(tmp_path: Path) -> None:
    shown = "import numba, ratchet.retrieval.sparse.engine as kernels; print(numba.config.CACHE_DIR)"
    assert run_python(shown, XDG_CACHE_HOME=str(tmp_path)).startswith(f"{tmp_path}/ratchet/numba-")
    assert run_python(shown, NUMBA_CACHE_DIR=str(tmp_path)).strip() == str(tmp_path)
