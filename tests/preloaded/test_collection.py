"""Processes that share the tests report a file that cannot be imported, and run one that imports nothing of ours."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def shared_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    """What pytest says when two processes share a sound test, which imports nothing, and the others in the folder."""
    (folder / "test_sound.py").write_text("def test_it(): ...\n")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.conftest", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_file_that_imports_nothing_of_the_project_passes(tmp_path: Path) -> None:
    ended = shared_tests(tmp_path)
    assert ended.returncode == pytest.ExitCode.OK, ended.stdout + ended.stderr


def test_a_file_that_cannot_be_imported_fails_the_tests(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").touch()
    (tmp_path / "broken" / "test_broken.py").write_text("from ratchet import no_such_name\n\n\ndef test_it(): ...\n")
    ended = shared_tests(tmp_path)
    assert "no_such_name" in ended.stdout, ended.stdout
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
