"""Locks: one writer at a time, which may be killed; writers that delete what they take for left over."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.errors import UserError
from ratchet.core.files import new_folder, write_atomic, write_json
from ratchet.core.locks import Lock, holder_of

HOLDER = """
import sys, time
from pathlib import Path
from ratchet.core.locks import Lock
from ratchet.commands.main import run_command
def main():
    with Lock(Path(sys.argv[1]), "the thing"):
        print("held", flush=True)
        time.sleep(600)
run_command(main)
"""


@contextmanager
def held_elsewhere(path: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, env={**os.environ, **environment}) as process:
        try:
            assert process.stdout and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_second_writer_is_told_who_holds_the_lock_until_that_one_is_killed(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with held_elsewhere(path, SLURM_JOB_ID="31", SLURM_ARRAY_TASK_ID="4") as process:
        who = rf"process {process.pid} on .+, SLURM job 31 \(task 4\), since "
        with pytest.raises(UserError, match=rf"{path}: another process is writing the thing: {who}.*stop it first"):
            Lock(path, "the thing").acquire()
        assert holder_of(path).startswith(f"process {process.pid} on ")
        process.kill()
        process.wait()
        assert path.exists() and holder_of(path) == ""
        with Lock(path, "the thing", wait=0.0):
            assert f"process {os.getpid()} " in path.read_text()
    assert not list(tmp_path.iterdir())


def test_a_writer_that_is_stopped_says_that_the_same_command_resumes(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / ".lock") as process:
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[1] == "\nstopped; run the same command again to resume\n"
        assert process.returncode == 143


@pytest.mark.slow
def test_a_job_waits_for_another_start_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    with held_elsewhere(tmp_path / ".lock") as process:
        lock = Lock(tmp_path / ".lock", "the thing")
        threading.Timer(0.5, process.terminate).start()
        with lock:
            assert f"waiting for the thing, which is held by process {process.pid} on" in capsys.readouterr().err


@pytest.mark.parametrize("context", [get_context("fork"), get_context("spawn")])
def test_a_child_keeps_no_lock(tmp_path: Path, context: Any) -> None:
    lock = Lock(tmp_path / ".lock", "it")
    lock.acquire()
    child = context.Process(target=signal.pause)
    child.start()
    try:
        lock.release()
        with Lock(tmp_path / ".lock", "it", wait=0.0):
            pass
    finally:
        child.kill()
        child.join()


def test_a_file_system_without_locks_is_said_once_and_the_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr(Lock, "_is_told", False)
    for name in ("a", "b"):
        with Lock(tmp_path / name, "it"), Lock(tmp_path / name, "it"):
            write_atomic(tmp_path / "file", "text")
        assert holder_of(tmp_path / name) == ""
    assert capsys.readouterr().err.count("this file system has no locks") == 1


def test_what_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/\.lock: cannot write"):
        Lock(tmp_path / "file" / ".lock", "it").acquire()


def test_a_writer_whose_folder_another_one_finished_says_so(tmp_path: Path) -> None:
    """As where a file system has no locks."""
    target = tmp_path / "shard"
    with pytest.raises(UserError, match=f"{target}: is there already"), new_folder(target), new_folder(target) as other:
        write_json(other / "whole", 1)
    with pytest.raises(UserError, match=f"{target}: is there already"), new_folder(target):
        raise AssertionError("it was not refused at once")
    assert [path.name for path in tmp_path.rglob("*")] == ["shard", "whole"]
