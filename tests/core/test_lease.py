"""Leases: one writer at a time, here and elsewhere; what is left by the dead is taken over, what lives is not."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ratchet.core import lease
from ratchet.core.errors import UserError
from ratchet.core.holder import Holder
from ratchet.core.lease import STALE_SECONDS, Lease
from tests.helpers.leases import rewrite

HOLDER = """
import sys, time
from pathlib import Path
from ratchet.index_build.writing import building_folder
from ratchet.core import lease
from ratchet.commands.arguments import run_command
lease.HEARTBEAT_SECONDS = 0.05
def main():
    with lease.Lease(Path(sys.argv[1]), "the thing"):
        print("held", flush=True)
        time.sleep(60)
run_command(main)
"""


@contextmanager
def holder(path: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lease."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def _short_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "WATCH_SECONDS", 0.1)


def elsewhere(path: Path, age: float = 0.0, **changes: Any) -> None:
    """A lease that a process of another machine holds, touched `age` seconds ago."""
    with Lease(path, "the thing"):
        text = path.read_text()
    path.write_text(text)
    rewrite(path, **{"token": "other", "host": "node7", "machine": "node7", **changes})
    os.utime(path, (time.time() - age, time.time() - age))


def test_a_writer_that_is_stopped_says_that_the_same_command_resumes(tmp_path: Path) -> None:
    with holder(tmp_path / ".lease") as process:
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=300)[1] == "\nstopped; run the same command again to resume\n"
        assert process.returncode == 143


def test_a_second_writer_is_told_who_holds_it_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / ".lease"
    with holder(path, SLURM_JOB_ID="31") as process, pytest.raises(UserError) as caught, Lease(path, "the thing"):
        pass
    message = str(caught.value)
    assert f"process {process.pid} on " in message
    assert "SLURM job 31" in message
    assert "the thing" in message
    assert "stop it first" in message
    assert str(path) in message


def test_a_lease_ends_with_its_block_and_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        with Lease(tmp_path / ".lease", "it"), pytest.raises(UserError), Lease(tmp_path / ".lease", "it"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_killed_holder_of_this_machine_is_followed_at_once(tmp_path: Path) -> None:
    path = tmp_path / ".lease"
    with holder(path) as process:
        process.kill()  # not waited for: a zombie writes no more either
        deadline = time.monotonic() + 300
        while True:
            try:
                with Lease(path, "it"):
                    break
            except UserError:
                assert time.monotonic() < deadline
    assert list(tmp_path.iterdir()) == []


def test_a_number_of_a_process_that_is_used_again_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".lease"
    with holder(path):
        with pytest.raises(UserError), Lease(path, "it"):
            pass
        rewrite(path, started="1")
        with Lease(path, "it"):
            pass


def test_a_stopped_process_of_this_machine_keeps_its_lease(tmp_path: Path) -> None:
    path = tmp_path / ".lease"
    with holder(path) as process:
        process.send_signal(signal.SIGSTOP)
        old = time.time() - 10 * STALE_SECONDS
        os.utime(path, (old, old))
        with pytest.raises(UserError), Lease(path, "it"):
            pass


def test_the_wait_is_for_as_long_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ".lease"
    monkeypatch.setenv("RATCHET_LEASE_WAIT", "30")
    with holder(path) as process:
        process.terminate()
        with Lease(path, "it"):
            assert process.wait(300) == 143
    monkeypatch.setenv("RATCHET_LEASE_WAIT", "soon")
    with pytest.raises(UserError, match="RATCHET_LEASE_WAIT=soon: expected a number"), Lease(path, "it"):
        pass


@pytest.mark.parametrize(("age", "is_free"), [(STALE_SECONDS / 3, False), (2 * STALE_SECONDS, True), (-7200, True)])
def test_another_machines_lease_is_free_when_it_is_no_more_touched(tmp_path: Path, age: float, is_free: bool) -> None:
    path = tmp_path / ".lease"
    elsewhere(path, age)
    if is_free:
        with Lease(path, "it"):
            assert json.loads(path.read_bytes())["pid"] == os.getpid()
        assert list(tmp_path.iterdir()) == []
    else:
        with pytest.raises(UserError, match="node7"), Lease(path, "it"):
            pass
        assert [p.name for p in tmp_path.iterdir()] == [".lease"]


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_is_set_takes_no_lease_from_a_holder_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """A holder elsewhere renews its lease by a clock that was set after its last renewal."""
    path = tmp_path / ".lease"
    elsewhere(path, age=3600 * hours)
    wait = time.sleep

    def renewed(seconds: float) -> None:
        wait(seconds)
        os.utime(path)

    monkeypatch.setattr("time.sleep", renewed)
    with pytest.raises(UserError, match="node7"), Lease(path, "it"):
        pass


@pytest.mark.parametrize(
    ("job", "restarts", "is_free"),
    [("8_3", 0, True), ("8_3", 1, False), ("8_4", 0, False), ("", 0, False)],
    ids=["earlier start", "same start", "other task", "no job"],
)
def test_an_earlier_start_of_the_same_job_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, restarts: int, is_free: bool
) -> None:
    elsewhere(tmp_path / ".lease", job=job, restarts=restarts)
    for name, value in (("JOB_ID", "12"), ("ARRAY_JOB_ID", "8"), ("ARRAY_TASK_ID", "3"), ("RESTART_COUNT", "1")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    if is_free:
        with Lease(tmp_path / ".lease", "it"):
            pass
    else:
        with pytest.raises(UserError), Lease(tmp_path / ".lease", "it"):
            pass


def test_a_lease_that_cannot_be_read_is_anothers_until_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / ".lease"
    path.write_bytes(b"")
    with pytest.raises(UserError), Lease(path, "it"):
        pass
    os.utime(path, (1.0, 1.0))
    with Lease(path, "it"):
        pass


TAKER = """
import sys, time
from pathlib import Path
from ratchet.index_build.writing import building_folder
from ratchet.core import lease
from ratchet.core.lease import Lease
lease.WATCH_SECONDS = 0.1
folder = Path(sys.argv[1])
while not (folder / "go").exists():
    pass
with Lease(folder / ".lease", "it", wait=30):
    inside = folder / "inside"
    inside.touch(exist_ok=False)
    time.sleep(0.01)
    inside.unlink()
"""


@pytest.mark.slow
def test_of_many_takers_of_a_dead_lease_one_at_a_time_has_it(tmp_path: Path) -> None:
    elsewhere(tmp_path / ".lease", age=2 * STALE_SECONDS)
    takers = [
        subprocess.Popen([sys.executable, "-c", TAKER, str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    (tmp_path / "go").touch()
    for taker in takers:
        error = taker.communicate(timeout=300)[1]
        assert taker.returncode == 0, error
    assert [p.name for p in tmp_path.iterdir()] == ["go"]


def test_a_taker_that_is_overtaken_while_it_looks_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".lease"
    elsewhere(path, age=2 * STALE_SECONDS)
    first, judge = Lease(path, "it"), lease._has_ended

    def overtaken(path: Path, holder: Holder, mine: Holder, watch: bool) -> bool:
        is_gone = judge(path, holder, mine, watch)
        monkeypatch.setattr(lease, "_has_ended", judge)
        first.acquire()
        return is_gone

    monkeypatch.setattr(lease, "_has_ended", overtaken)
    with pytest.raises(UserError), Lease(path, "it"):
        pass
    first.renew()
    first.check()
    first.release()
    assert list(tmp_path.iterdir()) == []


def test_of_two_takers_the_second_leaves_it_to_the_first_unless_that_was_killed(tmp_path: Path) -> None:
    path, claim = tmp_path / ".lease", tmp_path / ".lease.other"
    elsewhere(path, age=2 * STALE_SECONDS)
    claim.touch()
    with pytest.raises(UserError), Lease(path, "it"):
        pass
    os.utime(claim, (1.0, 1.0))
    with Lease(path, "it", wait=10.0):
        pass
    assert list(tmp_path.iterdir()) == []


TAKERS = """
import os, signal, sys
from pathlib import Path
from ratchet.core.lease import Lease
path = Path(sys.argv[1])
def take(killed_at):
    steps = 0
    def count(event, arguments):
        nonlocal steps
        is_step = event in ("open", "os.link", "os.rename", "os.remove")
        if is_step and any(str(path.parent) in str(argument) for argument in arguments[:2]):
            steps += 1
            if steps == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    Lease(path, "it", wait=0).acquire()
    os._exit(0)
if sys.argv[2] == "named":  # as on a network file system
    del os.O_TMPFILE
for line in sys.stdin:
    process = os.fork()
    if not process:
        try:
            take(int(line))
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("files", ["unnamed", "named"])
def test_a_kill_at_any_step_of_taking_a_lease_delays_nobody(tmp_path: Path, files: str) -> None:
    path = tmp_path / ".lease"
    with subprocess.Popen(
        [sys.executable, "-c", TAKERS, str(path), files], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as takers:

        def take(killed_at: int) -> int:
            """How another process ends that takes the lease, killed at this step, and does not release it."""
            assert takers.stdin and takers.stdout
            takers.stdin.write(f"{killed_at}\n")
            takers.stdin.flush()
            return int(takers.stdout.readline())

        steps = 0
        for killed_at in range(1, 100):
            assert take(0) == 0
            if take(killed_at) == 0:
                break
            steps += 1
            take(killed_at)  # killed too, while it takes over what the first one has left
            with Lease(path, "it", wait=0):
                for left in tmp_path.glob(".lease.*.tmp"):
                    assert files == "named"
                    os.utime(left, (1.0, 1.0))
            with Lease(path, "it", wait=0):
                assert [file.name for file in tmp_path.iterdir()] == [".lease"]
            assert list(tmp_path.iterdir()) == []
        assert steps >= 5
        assert takers.stdin
        takers.stdin.close()


def test_a_file_system_without_hard_links_has_leases_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for _ in range(2):
        with Lease(tmp_path / ".lease", "it"), pytest.raises(UserError), Lease(tmp_path / ".lease", "it"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_finds_another_in_its_lease_stops_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / ".lease"
    with holder(path) as process:
        elsewhere_text = {**json.loads(path.read_bytes()), "token": "other", "host": "node7"}
        path.write_text(json.dumps(elsewhere_text))
        assert process.wait(300) == 2
        assert process.stderr is not None
        assert "went to process" in process.stderr.read()
    assert path.exists(), "it deletes another's lease"


def test_a_lease_that_was_deleted_is_put_back_unless_another_took_it(tmp_path: Path) -> None:
    path = tmp_path / "run" / ".lease"
    with Lease(path, "it") as mine:
        path.unlink()
        mine.renew()
        with pytest.raises(UserError, match="another process is writing"), Lease(path, "it"):
            pass
        shutil.rmtree(path.parent)
        mine.renew()
        mine.check()
        assert not path.parent.exists(), "a folder that was deleted stays away"
        with Lease(path, "it"):
            mine.renew()
            with pytest.raises(UserError, match="the lease on it went to"):
                mine.check()


def test_a_forked_child_neither_releases_nor_beats(tmp_path: Path) -> None:
    path = tmp_path / ".lease"
    with Lease(path, "it") as held:
        child = os.fork()
        if child == 0:
            held.release()
            os._exit(0)
        os.waitpid(child, 0)
        assert path.exists()
