"""slurm/job.sh under a real bash: signals, requeueing, set-up, arrays. Only scontrol, module and the like are ours."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.waiting import wait_for

SCRIPT = Path(__file__).parents[2] / "slurm" / "job.sh"
# A command that stops in order on TERM, with a status that says so, and counts how often it was told.
STOPS = """
import signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
open(sys.argv[1], "w").close()
while not told:
    time.sleep(0.02)
time.sleep(0.3)
print("stopped in order, told", len(told), "times", flush=True)
sys.exit(int(sys.argv[2]))
"""


class World:
    """A folder with programs of its own on PATH, and a job in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ready, self.calls = folder, folder / "ready", folder / "calls"
        (folder / "bin").mkdir()
        self.program("scontrol", f'echo "scontrol $*" >> {self.calls}')
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "RATCHET_"))},
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "77",
            "RATCHET_STOP_SECONDS": "20",
        }

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(SCRIPT), *command],
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str, **variables: str) -> tuple[int, str]:
        job = self.start(*command, **variables)
        out = job.communicate(timeout=300)[0]
        return job.returncode, out

    def stopped(self, *numbers: int, status: int = 143, **variables: str) -> tuple[int, str]:
        """A job that is sent these signals while its command runs."""
        job = self.start(sys.executable, "-c", STOPS, str(self.ready), str(status), **variables)
        wait_for(self.ready.exists)
        for number in numbers:
            job.send_signal(number)
            time.sleep(0.05)
        out = job.communicate(timeout=300)[0]
        return job.returncode, out

    def requeued(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_command_that_ends_by_itself_gives_its_status_and_is_not_requeued(world: World, status: int) -> None:
    found, out = world.run("sh", "-c", f"echo working; exit {status}")
    assert found == status and "working" in out
    assert world.requeued() == []


@pytest.mark.slow
def test_near_the_time_limit_the_command_stops_in_order_and_the_job_requeues_itself_once(world: World) -> None:
    status, out = world.stopped(signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM)
    assert status == 143
    assert "stopped in order, told 1 times" in out
    assert world.requeued() == ["scontrol requeue 77"]


@pytest.mark.slow
def test_a_task_of_an_array_requeues_itself_alone(world: World) -> None:
    world.stopped(signal.SIGUSR1, SLURM_ARRAY_JOB_ID="70", SLURM_ARRAY_TASK_ID="4")
    assert world.requeued() == ["scontrol requeue 70_4"]


@pytest.mark.slow
def test_work_that_was_finished_just_in_time_is_not_done_again(world: World) -> None:
    status, _ = world.stopped(signal.SIGUSR1, status=0)
    assert status == 0 and world.requeued() == []


@pytest.mark.slow
def test_preempted_or_cancelled_it_stops_in_order_and_leaves_the_rest_to_slurm(world: World) -> None:
    status, out = world.stopped(signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1)
    assert status == 143
    assert "stopped in order, told 1 times" in out
    assert world.requeued() == []


@pytest.mark.slow
def test_a_job_is_not_requeued_for_ever(world: World) -> None:
    _, out = world.stopped(signal.SIGUSR1, RATCHET_MAX_REQUEUES="3", SLURM_RESTART_COUNT="2")
    assert len(world.requeued()) == 1
    world.ready.unlink()
    status, out = world.stopped(signal.SIGUSR1, RATCHET_MAX_REQUEUES="3", SLURM_RESTART_COUNT="3")
    assert status != 0 and len(world.requeued()) == 1
    assert "started 4 times already: not requeued" in out


@pytest.mark.slow
def test_where_it_cannot_be_requeued_the_job_fails_and_says_so(world: World) -> None:
    world.program("scontrol", "exit 1")
    status, out = world.stopped(signal.SIGUSR1)
    assert status == 143 and "cannot be requeued" in out


@pytest.mark.slow
def test_what_does_not_stop_is_killed_and_the_job_requeued_before_its_time_is_over(world: World) -> None:
    deaf = f"trap '' TERM; touch {world.ready}; while :; do sleep 0.1; done"
    job = world.start("sh", "-c", deaf, RATCHET_STOP_SECONDS="1")
    wait_for(world.ready.exists)
    job.send_signal(signal.SIGUSR1)
    out = job.communicate(timeout=300)[0]
    assert job.returncode == 137 and "it does not stop: killed" in out
    assert world.requeued() == ["scontrol requeue 77"]


@pytest.mark.slow
def test_srun_gets_the_signal_that_it_passes_on_to_all_nodes(world: World) -> None:
    """At a TERM it kills its step."""
    traps = "trap 'echo passed on; exit 143' USR1; trap 'echo killed; exit 9' TERM"
    world.program("srun", f"{traps}; touch {world.ready}; while :; do sleep 0.1; done")
    job = world.start("srun", "train")
    wait_for(world.ready.exists)
    job.send_signal(signal.SIGUSR1)
    out = job.communicate(timeout=300)[0]
    assert job.returncode == 143 and "passed on" in out and "killed" not in out
    assert world.requeued() == ["scontrol requeue 77"]


@pytest.mark.slow
def test_nothing_that_a_launcher_started_is_left_behind(world: World) -> None:
    """As with `accelerate launch`, which dies of TERM before its child has heard of it."""
    job = world.start("sh", "-c", f"sleep 60 & echo $! > {world.ready}.new; mv {world.ready}.new {world.ready}; wait")
    wait_for(world.ready.exists)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=300)
    assert job.returncode == 143
    assert not Path(f"/proc/{world.ready.read_text().strip()}").exists()


@pytest.mark.slow
def test_a_signal_during_set_up_is_not_lost(world: World) -> None:
    marks = world.folder / "started"
    setup = f"touch {world.ready}; sleep 1"
    job = world.start("touch", str(marks), RATCHET_SETUP=setup)
    wait_for(world.ready.exists)
    job.send_signal(signal.SIGUSR1)
    job.communicate(timeout=300)
    assert job.returncode == 143 and not marks.exists()
    assert world.requeued() == ["scontrol requeue 77"]


def test_arguments_arrive_as_they_are_and_the_tasks_number_where_it_belongs(world: World) -> None:
    awkward = ["a b", "", "*", "$HOME", "`x`", "--part", "@TASK@/8", "x@TASK@/8", "it's", 'say "so"', "line\nline"]
    show = "import os, sys; print(sys.argv[1:], os.environ['OMP_NUM_THREADS'])"
    world.environment.pop("OMP_NUM_THREADS", None)
    task = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3", "SLURM_CPUS_PER_TASK": "6"}
    status, out = world.run(sys.executable, "-c", show, *awkward, **task)
    assert status == 0
    assert str([*awkward[:6], "3/8", *awkward[7:]]) + " 6" in out


@pytest.mark.parametrize(("gpus", "threads"), [("", 8), ("1", 8), ("4", 2), ("16", 1)])
def test_threads_are_the_share_of_one_gpu(world: World, gpus: str, threads: int) -> None:
    world.environment.pop("OMP_NUM_THREADS", None)
    told = {"SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_ON_NODE": gpus}
    status, out = world.run("sh", "-c", "echo threads $OMP_NUM_THREADS", **told)
    assert status == 0 and f"threads {threads}\n" in out


def test_modules_and_set_up_come_before_the_command(world: World) -> None:
    # As sbatch hands a function down.
    module = {"BASH_FUNC_module%%": f'() {{ echo "module $*" >> {world.calls}; }}'}
    setup = "export FOUND=here\n[ -z $SOME_UNSET_VARIABLE ]"
    show = ("sh", "-c", "echo found $FOUND")
    status, out = world.run(*show, RATCHET_MODULES="cuda/12 gcc", RATCHET_SETUP=setup, **module)
    assert status == 0 and "found here" in out
    assert world.requeued() == ["module load cuda/12", "module load gcc"]


@pytest.mark.parametrize(
    ("name", "text"), [("RATCHET_SETUP", "source /nowhere/activate"), ("RATCHET_MODULES", "cuda/12")]
)
def test_a_set_up_that_fails_says_so_and_runs_nothing(world: World, name: str, text: str) -> None:
    module = {"BASH_FUNC_module%%": "() { return 1; }"}
    status, out = world.run("echo", "must not run", **{name: text}, **module)
    assert status == 2 and "failed; see" in out and "must not run" not in out.replace("job 77", "")
