"""Where compiled kernels are kept, when the usual places cannot be written."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ratchet.core import numba_cache
from ratchet.core.numba_cache import ROOT as REPO
from ratchet.inference.local.attention import attention_kernel
from ratchet.inference.local.cache import BLOCK

KERNEL = """
import sys, tempfile
if sys.argv[1:] == ["no temporary folder"]:
    tempfile.tempdir = "/proc/nothing"
from ratchet.core.numba_cache import njit
import ratchet.retrieval.sparse.engine as kernels

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


@pytest.mark.slow
def test_without_a_home_kernels_are_kept_in_a_temporary_folder_of_ones_own(tmp_path: Path) -> None:
    assert run_kernel(tmp_path) == "42\n"
    folder = tmp_path / f"ratchet-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700 and list(folder.rglob("*.nbi"))


@pytest.mark.slow
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


def test_attention_is_compiled_once_for_each_shape_of_a_model_and_not_in_each_process() -> None:
    def attend(group: int) -> tuple[int, np.ndarray]:
        """How often a kernel that was made anew was in the cache, and what it computes of values that are all 1."""
        kernel = attention_kernel.__wrapped__(group, 4)
        query, out = np.ones((1, group, 4), np.float32), np.zeros((1, group, 4), np.float32)
        page, tiles = np.ones(4 * BLOCK, np.float32), np.array([[0, 1, 0, 1]])
        kernel(query, page, page, 1, np.zeros((1, 1), np.int32), tiles, np.float32(0.5), out, 0, 1)
        return sum(kernel.stats.cache_hits.values()), out  # type: ignore[attr-defined]

    attend(1)
    assert attend(2)[1].min() == 1, "of as many heads as it was made for"
    assert [attend(group)[0] for group in (1, 2)] == [1, 1]


@pytest.mark.slow
def test_a_function_that_only_kernels_call_has_no_machine_code_of_its_own() -> None:
    @numba_cache.inner
    def powers(base: int, count: int) -> np.ndarray:
        found = np.ones(count, np.int64)
        for i in range(1, count):
            found[i] = base * found[i - 1]
        return found

    @numba_cache.inner
    def total(base: int, count: int) -> int:
        return powers(base, count).sum()

    @numba_cache.njit()
    def totals(count: int) -> int:
        return total(np.int64(2), count) + total(np.int64(3), count)

    assert totals(4) == 15 + 40
    for function in (powers, total):
        (compiled,) = function.overloads.values()
        with pytest.raises(ValueError, match="object caching not enabled"):
            compiled.library._get_compiled_object()


TWICE = """
import sys
from numba.core import event
from ratchet.core.numba_cache import njit

@njit(cache=True)
def twice(number):
    return 2 * number

with event.install_recorder("numba:compile") as compiled:
    print(twice(int(sys.argv[1])), len(compiled.buffer) // 2, "scipy.linalg" in sys.modules)
"""


def start_twice(folder: Path, number: int) -> subprocess.Popen[str]:
    (folder / "twice.py").write_text(TWICE)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(REPO)}
    command = [sys.executable, "-X", "faulthandler", str(folder / "twice.py"), str(number)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def printed(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate()
    assert process.returncode == 0, f"ended with {process.returncode}: {errors}"
    return out


@pytest.mark.slow
def test_processes_that_start_together_compile_a_kernel_once(tmp_path: Path) -> None:
    started = [start_twice(tmp_path, number) for number in (1, 2, 3)]
    lines = [printed(process).split() for process in started]
    assert [line[0] for line in lines] == ["2", "4", "6"]
    assert sorted(line[1] for line in lines) == ["0", "0", "1"]


@pytest.mark.slow
def test_a_kernel_that_was_compiled_before_is_read_without_all_that_compiling_needs(tmp_path: Path) -> None:
    assert [printed(start_twice(tmp_path, 21)) for _ in range(2)] == ["42 1 True\n", "42 0 False\n"]


@pytest.mark.slow
def test_a_kernel_is_compiled_where_another_process_never_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba_cache, "LONGEST_WAIT", 0.1)
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))

    @numba_cache.njit(cache=True)
    def thrice(number: int) -> int:
        return 3 * number

    lock = Path(thrice._cache.cache_path, f"{__name__}.{thrice.__qualname__}.lock")
    hold = "import sys, filelock\nwith filelock.FileLock(sys.argv[1]): print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline()
        assert thrice(14) == 42
        assert holder.poll() is None
        holder.communicate()
    assert gc.isenabled()
