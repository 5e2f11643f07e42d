"""Processes that share the tests report a file that cannot be imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_a_file_that_cannot_be_imported_fails_the_tests(tmp_path: Path) -> None:
    (tmp_path / "test_sound.py").write_text("def test_it(): ...\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").touch()
    (tmp_path / "broken" / "test_broken.py").write_text("from ratchet import no_such_name\n\n\ndef test_it(): ...\n")
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "tests.conftest", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "no_such_name" in ended.stdout, ended.stdout
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
