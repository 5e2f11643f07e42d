"""Jobs of a real SLURM that are preempted, out of time or without a controller: the result is the same.

The model is a script, so a run has one result; `undisturbed` has it.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.files import read_segments
from ratchet.core.records import Score, Trajectory
from ratchet.core.runfolder import RoundFolder, RunFolder
from tests.helpers.experiment import command, make_experiment, preloaded
from tests.helpers.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
QUESTIONS, SAMPLES = 8, 4
ALL = QUESTIONS * SAMPLES
ROUND = '"$0" -m ratchet sample "$@" && exec "$0" -m ratchet score "$@"'


class Site:
    """A cluster, and an experiment that its jobs run in folders of their own."""

    def __init__(self, cluster: SlurmCluster, config: Path) -> None:
        self.cluster, self._config = cluster, config

    def submit(self, run: str, *options: str, settings: tuple[str, ...] = ()) -> int:
        """Sampling and scoring in run folder `run`."""
        words = [word for setting in (f"run={self._config.parent / run}", *settings) for word in ("--set", setting)]
        work = ("bash", "-c", ROUND, sys.executable, "--config", str(self._config), *words)
        options = ("--requeue", "--signal=B:USR1@20", *options)
        return self.cluster.submit(*options, "slurm/job.sh", *work, env=preloaded())

    def round(self, run: str) -> RoundFolder:
        return RunFolder(self._config.parent / run).round(1)

    def sampled(self, run: str) -> list[Trajectory]:
        return list(read_segments(self.round(run).trajectories, Trajectory))

    def wait_for_some(self, run: str, job: int, count: int = 4) -> None:
        """Until the job is in the middle of sampling: it has `count` trajectories."""
        deadline = time.monotonic() + 180
        while len(self.sampled(run)) < count:
            assert time.monotonic() < deadline, self.cluster.log(job)
            time.sleep(0.2)

    def result(self, run: str) -> dict[str, Any]:
        """What a run came to, without how long it took; nothing may be there twice."""
        sampled, folder = self.sampled(run), self.round(run)
        assert len({t.key for t in sampled}) == len(sampled) == ALL
        scores = [
            (path.name, score.trajectory, score.value, score.reason)
            for path in folder.scores.glob("*.jsonl")
            for score in read_segments(folder.scores, Score)
            if path.name.startswith(f"{score.name}-")
        ]
        assert len(set(scores)) == len(scores)
        return {
            "trajectories": sorted(
                (t.key, t.status, t.answer, [(c.role, c.ids) for c in t.conversations]) for t in sampled
            ),
            "scores": sorted(scores, key=str),
            "selection": json.loads(folder.selection.read_text()),
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    config = make_experiment(tmp_path_factory.mktemp("disturbed"), QUESTIONS, delay=0.25)
    built = command("-m", "ratchet", "index", "--config", str(config))
    assert built.returncode == 0, built.stdout
    with SlurmCluster() as cluster:
        yield Site(cluster, config)


@pytest.fixture(scope="module")
def out_of_time(site: Site) -> int:
    """A job whose time will soon be over, though it has begun to write; begun early, as it takes long.

    SLURM looks at time limits every 30 s, and warns where less than 30 s more than `--signal` says are left: a limit
    given at the start would have to allow for how long the job takes to begin on a busy machine. The warning comes
    within 30 s here, when a busy machine still has 145 s to stop the job.
    """
    job = site.submit("out of time", "--signal=B:USR1@150", settings=("sampling.concurrency=1",))
    site.wait_for_some("out of time", job, count=1)
    site.cluster.run("scontrol", "update", f"JobId={job}", "EndTime=now+175seconds")
    return job


@pytest.fixture(scope="module")
def undisturbed(site: Site, out_of_time: int) -> dict[str, Any]:
    site.cluster.wait(site.submit("undisturbed"), "COMPLETED")
    return site.result("undisturbed")


def test_a_preempted_job_goes_on_where_it_was(site: Site, undisturbed: dict[str, Any]) -> None:
    job = site.submit("preempted", "--gres=gpu:1")
    site.wait_for_some("preempted", job)
    before = site.sampled("preempted")
    urgent = site.cluster.submit("--partition=urgent", "--gres=gpu:1", "--wrap", "true")
    site.cluster.wait(urgent, "COMPLETED")
    assert len(site.sampled("preempted")) < ALL, "it was over before it was preempted"
    site.cluster.start_soon(job)
    [ended] = site.cluster.wait(job, "COMPLETED")
    assert ended["Restarts"] == "1"
    assert site.result("preempted") == undisturbed
    assert site.sampled("preempted")[: len(before)] == before, "what was done is done again"


def test_a_job_requeues_itself_before_its_time_limit(site: Site, undisturbed: dict[str, Any], out_of_time: int) -> None:
    site.cluster.wait(out_of_time, "PENDING")
    log = site.cluster.log(out_of_time)
    assert "out of time before the work was done: requeued" in log
    assert "stopped; run the same command again" in log
    assert 0 < len(site.sampled("out of time")) < ALL
    assert not list(site.round("out of time").trajectories.glob(".*.lock")), "a lock was left behind"
    site.cluster.run("scontrol", "update", f"JobId={out_of_time}", "TimeLimit=10")
    site.cluster.start_soon(out_of_time)
    [ended] = site.cluster.wait(out_of_time, "COMPLETED")
    assert ended["Restarts"] == "1"
    assert site.result("out of time") == undisturbed


def test_a_job_outlives_its_controller(site: Site, undisturbed: dict[str, Any]) -> None:
    job = site.submit("no controller", settings=("sampling.concurrency=2",))
    site.wait_for_some("no controller", job)
    site.cluster.kill_controller(job)
    before = len(site.sampled("no controller"))
    site.cluster.start_controller()
    site.cluster.wait(job, "COMPLETED")
    assert before < ALL
    assert site.result("no controller") == undisturbed
