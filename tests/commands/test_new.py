"""`ratchet new`: what it writes is what the guide shows (tests/system/test_docs_own_folder.py), runs, and replaces
nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ratchet.commands.new import ENTRIES
from ratchet.core.config import Config
from ratchet.core.plugins import load_plugin
from tests.helpers.experiment import ROOT, command, preloaded


def new(folder: Path, *words: str) -> tuple[int, str]:
    done = command("-m", "ratchet", "new", *words, folder=folder)
    return done.returncode, done.stdout


@pytest.mark.parametrize("kind", list(ENTRIES))
def test_the_file_is_a_plug_in_and_the_entry_names_it(kind: str, tmp_path: Path) -> None:
    status, said = new(tmp_path, kind, "mine")
    assert status == 0
    plugin = load_plugin(f"{kind}s", str(tmp_path / "mine.py"), (), "here")  # type: ignore[arg-type]
    assert plugin.is_outside
    entry = yaml.safe_load(said.partition("in a config: ")[2])
    base = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    Config.model_validate({**base, **entry})
    assert "./mine.py" in str(entry)


@pytest.mark.slow
def test_the_test_of_a_new_system_passes(tmp_path: Path) -> None:
    new(tmp_path, "system", "mine")
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(run, cwd=tmp_path, env=preloaded(), capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("there", ["mine.py", "test_mine.py"])
def test_no_file_is_overwritten(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("# mine\n")
    status, said = new(tmp_path, "system", "mine.py")
    assert status == 2 and f"{there} exists" in said
    assert [path.name for path in tmp_path.iterdir()] == [there] and (tmp_path / there).read_text() == "# mine\n"


def test_a_name_that_no_module_can_have_is_refused(tmp_path: Path) -> None:
    status, said = new(tmp_path, "reward", "my-reward")
    assert status == 2 and "letters, digits and underscores" in said
