"""How the wheel's modules import each other; tests/system/test_own_data.py installs and uses the wheel."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.pages import ROOT


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
        ("from ratchet.agents.core import x\n", "from ratchet.agents.core import x\n"),
        (
            "from ratchet.agents import (\n    a,\n    b as agents,\n)\n",
            "from ratchet.agents import (\n    a,\n    b as agents,\n)\n",
        ),
        ("import agents", "from ratchet import agents"),
        ("import train as t", "import ratchet.train as t"),
        (
            "import questions.benchmarks\n",
            "import ratchet.questions.benchmarks as _questions_benchmarks; from ratchet import questions\n",
        ),
        ("if x:\n    import os, agents  # both\n", "if x:\n    import os; from ratchet import agents  # both\n"),
        ("s = '''é'''; from ratchet.rewards import y\n", "s = '''é'''; from ratchet.rewards import y\n"),
    ],
)
def test_imports_are_rewritten(rewrite: Callable[[str], str], before: str, after: str) -> None:
    assert rewrite(before) == after


@pytest.mark.parametrize(
    "source",
    [
        "text = 'from ratchet.agents import x'\n",
        '"""\nimport agents\n"""\n',
        "from ratchet.core.config import agents\nimport numpy\n",
        "from . import agents\nfrom .agents import x\n",
        "agents = 1  # import agents\n",
        "import agentsmith, trainer\n",
    ],
)
def test_what_is_no_import_of_ours_stays(rewrite: Callable[[str], str], source: str) -> None:
    assert rewrite(source) == source
