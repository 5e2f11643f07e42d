"""Where compiled kernels are kept, when the usual places cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.packages import ROOT as REPO

KERNEL = """
import sys, tempfile
if sys.argv[1:] == ["no temporary folder"]:
    tempfile.tempdir = "/proc/nothing"
from ratchet.numba_cache import njit
import retrieval.sparse.kernels as kernels

@njit(cache=True)
def double(number):
    return 2 * number

print(double(21))
"""


def run_kernel(folder: Path, *arguments: str) -> str:
    (folder / "kernel.py").write_text(KERNEL)
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": "/proc/nothing", "TMPDIR": str(folder), "PYTHONPATH": str(REPO)}
    done = subprocess.run(
        [sys.executable, folder / "kernel.py", *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_a_home_kernels_are_kept_in_a_temporary_folder_of_ones_own(tmp_path: Path) -> None:
    assert run_kernel(tmp_path) == "42\n"
    folder = tmp_path / f"ratchet-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700 and list(folder.rglob("*.nbi"))


@pytest.mark.parametrize("spoilt", ["open to others", "a link", "no folder at all"])
def test_compiled_code_is_neither_read_from_nor_left_in_a_folder_of_others(tmp_path: Path, spoilt: str) -> None:
    folder, elsewhere = tmp_path / f"ratchet-{os.getuid()}", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if spoilt == "a link":
        folder.symlink_to(elsewhere)
    elif spoilt == "open to others":
        folder.mkdir()
        folder.chmod(0o777)
    assert run_kernel(tmp_path, *(["no temporary folder"] if spoilt == "no folder at all" else [])) == "42\n"
    assert not list(tmp_path.rglob("*.nbi"))
