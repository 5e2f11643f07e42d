"""Under a real SLURM: a round as one job or stage by stage, training over two nodes with a time limit in between, and a
sweep as an array give what the commands give."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors import safe_open

from ratchet.core.files import read_log, read_segments
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RoundFolder, RunFolder
from tests.helpers.experiment import ROOT, command, make_experiment, preloaded
from tests.helpers.slurm_cluster import SlurmCluster
from tests.helpers.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SITE = """
partition: gpu
jobs:
  default: {time: "00:10:00", cpus: 2, memory: 1G, gpus: 0}
  index: {tasks: 2}
  sample: {tasks: 2}
  merge: {gpus: 0}
setup: export FROM_SITE=yes
signal_seconds: 10
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster() as found:
        yield found


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment whose round was run without SLURM, in the run folder `plain`."""
    folder = tmp_path_factory.mktemp("jobs of mine")
    path = make_experiment(folder, questions=4)
    data = yaml.safe_load(path.read_text())
    data["index"]["shard_documents"] = 6
    path.write_text(yaml.safe_dump(data))
    (folder / "site.yaml").write_text(SITE)
    words = [sys.executable, "selftrain.py", "--config", str(path), "--set", f"run={folder / 'plain'}"]
    subprocess.run(words, cwd=ROOT, env=preloaded(), check=True)  # as the jobs: weights are compared bit by bit
    return path


def submit(cluster: SlurmCluster, job: str, config: Path, *overrides: str, site: Path | None = None) -> dict[str, int]:
    """ratchet slurm; the jobs' numbers by name."""
    flags = [word for override in overrides for word in ("--set", override)]
    file = str(site or config.parent / "site.yaml")
    program = [sys.executable, "-m", "ratchet", "slurm", job, "--config", str(config), "--site", file, *flags]
    out = cluster.run(*program, env=preloaded())
    return {name: int(number) for number, name in re.findall(r"^(\d+)  ([\w-]+)", out, flags=re.M)}


def finish(cluster: SlurmCluster, jobs: dict[str, int], run: Path) -> None:
    for number in jobs.values():
        try:
            cluster.wait(number, "COMPLETED", deadline=400)
        except AssertionError as error:
            logs = "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in (run / "slurm").iterdir())
            raise AssertionError(f"{error}\n{logs}") from None


def weights_of(folder: RoundFolder) -> dict[str, np.ndarray]:
    with safe_open(folder.adapter / "adapter_model.safetensors", "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def outcome(folder: RoundFolder) -> dict[str, Any]:
    """What a round came to, without where and how fast; every trajectory once."""
    sampled = list(read_segments(folder.trajectories, Trajectory))
    results = json.loads((folder.evaluation / "results.json").read_text())
    weights = {name: tensor.tobytes() for name, tensor in weights_of(folder).items()}
    return {
        "trajectories": sorted((t.key, t.status, t.answer, [c.ids for c in t.conversations]) for t in sampled),
        "selection": json.loads(folder.selection.read_text()),
        "weights": weights,
        "measures": [
            {name: found for name, found in arm["measures"].items() if name != "seconds"} for arm in results["arms"]
        ],
    }


def test_a_round_as_one_job_and_stage_by_stage(cluster: SlurmCluster, config: Path) -> None:
    plain = outcome(RunFolder(config.parent / "plain").round(1))
    assert len(plain["trajectories"]) == 4 * 4
    one, stages = config.parent / "one job", config.parent / "stages"
    finish(cluster, submit(cluster, "round", config, f"run={one}"), one)
    assert outcome(RunFolder(one).round(1)) == plain and "<html" in RunFolder(one).report.read_text()
    # The single stages build an index of their own, in two tasks, and sample in two.
    own = (f"run={stages}", f"index.path={config.parent / 'index 2'}")
    for job in ("index", "sample", "rewards", "train", "evaluate"):
        finish(cluster, submit(cluster, job, config, *own), stages)
    assert len(list(RunFolder(stages).round(1).trajectories.glob("*.jsonl"))) == 2
    assert outcome(RunFolder(stages).round(1)) == plain


SLOW = """
import os
import time

from ratchet.training.objectives.objective import Lesson, RowObjective


class Slow(RowObjective):
    needs_both_sides = needs_reference = False

    def lessons(self, alternatives):
        return {
            key: Lesson(alternatives.question, reward, reward, example="", chosen=True)
            for key, reward in alternatives.rewards.items()
        }

    def loss(self, rows):
        time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
        return (-rows.weights[:, None] * rows.now).where(rows.learnt, 0).sum()


OBJECTIVE = Slow
"""
"""Steps that a time limit can come between: SLURM looks at limits every 30 s."""


def test_training_over_two_nodes_stops_before_its_limit_and_resumes_to_what_one_process_gives(
    config: Path,
) -> None:
    """Two slurmd of this machine are two nodes, on each of which a process of DDP meets the other at an address."""
    sampled, one, two = (config.parent / name for name in ("plain", "one process", "two nodes"))
    (config.parent / "slow.py").write_text(SLOW)
    settings = [f"training.objective={config.parent / 'slow.py'}", "training.max_steps=24", "training.eval_steps=100"]
    for run in (one, two):
        for name in ("trajectories", "scores"):
            shutil.copytree(sampled / "round-1" / name, run / "round-1" / name)
        shutil.copy(sampled / "round-1" / "selection.json", run / "round-1")
    words = [word for setting in (*settings, f"run={one}") for word in ("--set", setting)]
    alone = subprocess.run(
        [sys.executable, "-m", "ratchet", "train", "--config", str(config), *words, "--anyway"],
        cwd=ROOT, env=preloaded(), check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert alone.returncode == 0, alone.stdout
    site = config.parent / "two.yaml"
    own = 'train: {nodes: 2, gpus: 0}\nenvironment: {STEP_SECONDS: "2"}\n'
    site.write_text(SITE.replace("merge: {gpus: 0}\n", own).replace("signal_seconds: 10", "signal_seconds: 150"))
    folder = RunFolder(two).round(1)
    with SlurmCluster(nodes=2) as cluster:
        [job] = submit(cluster, "train", config, f"run={two}", *settings, site=site).values()
        log = two / "slurm" / f"train-{job}.out"
        wait_for(lambda: bool(read_log(folder.training / "log.jsonl")), 300)
        cluster.run("scontrol", "update", f"JobId={job}", "EndTime=now+175seconds")
        cluster.wait(job, "PENDING", "COMPLETED")
        said = log.read_text()
        assert "out of time before the work was done: requeued" in said, said
        assert "training ends after this step, with a checkpoint" in said and "Traceback" not in said, said
        stopped = read_log(folder.training / "log.jsonl")[-1]["step"]
        assert 0 < stopped < 24
        cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=10")
        cluster.start_soon(job)
        finish(cluster, {"train": job}, two)
    said = log.read_text()
    assert f"{stopped} of 24 were done before; resuming" in said
    assert all(f"node.sh: node {number}, node{number}: " in said for number in (0, 1))
    assert (folder.training / f"checkpoint-{stopped}" / "rng_state_1.pth").exists(), "there was one process alone"
    for name, weights in weights_of(RunFolder(one).round(1)).items():
        np.testing.assert_allclose(weights_of(folder)[name], weights, rtol=1e-3, atol=1e-5)


def test_a_sweep_as_an_array_and_what_the_merge_says_of_a_missing_cell(cluster: SlurmCluster, config: Path) -> None:
    run = f"run={config.parent / 'plain'}"
    jobs = submit(cluster, "sweep", config, run)
    assert list(jobs) == ["sweep", "merge", "test"]
    finish(cluster, jobs, config.parent / "plain")
    tables = config.parent / "plain" / "sweep"
    by_jobs = measures(tables)
    assert len(by_jobs) >= 3  # base, adapter and its checkpoints on dev, and the test
    (tables / "test.json").unlink()
    shutil.rmtree(config.parent / "plain" / "arms" / "dev")
    merge = [sys.executable, "-m", "ratchet", "sweep", "merge", "--config", str(config), "--set", run]
    job = cluster.submit("--partition=gpu", "--mem=1G", "slurm/job.sh", *merge)  # by hand, without a site file
    cluster.wait(job, "FAILED", deadline=400)
    assert "base/mrag/dev" in cluster.log(job) and "the command ended with status 1" in cluster.log(job)
    done = command("-m", "ratchet", "sweep", "--config", str(config), "--set", run)
    assert done.returncode == 0, done.stdout
    assert measures(tables) == by_jobs


def measures(sweep: Path) -> dict[str, Any]:
    cells = json.loads((sweep / "sweep.json").read_text())["cells"]
    return {
        f"{cell['stage']} {cell['checkpoint']}": {
            name: found for name, found in cell["arm"]["measures"].items() if name != "seconds"
        }
        for cell in cells
    }
