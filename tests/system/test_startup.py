"""A run's status and a search come at once: they import no library that they do not use."""

import subprocess
import sys
from pathlib import Path

from ratchet.commands.config import open_config
from ratchet.questions.manifest import open_run
from tests.helpers.experiment import command, make_experiment

ROOT = Path(__file__).parents[2]
HEAVY = ("accelerate", "datasets", "peft", "torch", "transformers", "trl", "xgrammar")
"""Not numba: the search engine's module is compiled by decorators, so whatever opens an index imports it."""


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
    # A kernel that is not in the cache is compiled, for which more is imported. This process may hold it in memory.
    subprocess.run([sys.executable, "-m", "ratchet", "search", *wrong], cwd=ROOT, capture_output=True, check=True)
    program = "import sys; from ratchet.commands.main import main; main(); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program, "search", *wrong], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("  1  "), done.stderr
    unneeded = {*HEAVY, "ratchet.agents", "ratchet.rewards", "ratchet.training", "asyncio", "scipy.linalg"}
    unneeded |= {"numba.np.arrayobj", "numba.cpython.unicode"}
    assert unneeded & set(done.stderr.split()) == set()
    assert "no_such_setting" in command("-m", "ratchet", "sample", *wrong[:-1]).stdout
