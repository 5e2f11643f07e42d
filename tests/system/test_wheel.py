"""The wheel, installed into an empty environment beside another project's `agents`, runs without the checkout.

The environment has the same path and its files the same times in every session, so Numba compiles the kernels once for
each version of their sources, as for a user: some 20 seconds of a core.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.experiment import make_experiment
from tests.helpers.pages import ROOT
from tests.helpers.wheel import Installed


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
