"""An ablation through its command: runs that share trajectories, a table of all, and a kill in the middle."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.core.files import REFERENCES
from ratchet.core.locks import Lock
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.arms import results_path
from ratchet.evaluation.results import read_results
from ratchet.rounds.ledger import read_ledger
from ratchet.rounds.status import LOCK
from ratchet.sampling.store import TrajectoryStore
from tests.helpers.experiment import ROOT, Done, command, kill, make_experiment, preloaded
from tests.helpers.waiting import wait_for

ARMS = """\
best:
two: [rewards.select.ties=2]
short:
  - training.max_steps=2
"""


SAMPLED = 6 * 12
"""Of a seed: enough that some are kept, whatever the folder's name makes of the seeds."""


def make_ablation(folder: Path, arms: str = ARMS, delay: float = 0.0) -> Path:
    path = make_experiment(folder, questions=6, delay=delay)
    path.write_text(path.read_text().replace("samples: 4", "samples: 12"))
    (folder / "arms.yaml").write_text(arms)
    assert command("-m", "ratchet", "index", "--config", str(path)).returncode == 0
    return path


def words(path: Path, *more: str, seeds: str = "1,2") -> list[str]:
    given = ["--config", str(path), "--arms", str(path.parent / "arms.yaml"), "--seeds", seeds]
    return ["-m", "ratchet", "ablate", *given, *more]


def ablate(path: Path, *more: str, seeds: str = "1,2") -> Done:
    return command(*words(path, *more, seeds=seeds))


def run_of(path: Path, arm: str, seed: int) -> RunFolder:
    return RunFolder(path.parent / "run" / "ablations" / "arms" / f"seed-{seed}" / arm)


def table(path: Path) -> list[dict[str, str]]:
    with (path.parent / "run" / "ablations" / "arms" / "table.csv").open() as file:
        return list(csv.DictReader(file))


def own_trajectories(run: RunFolder) -> list[Path]:
    return list(run.round(1).trajectories.glob("*.jsonl"))


@pytest.mark.slow
def test_arms_of_one_seed_share_trajectories_and_make_one_table(tmp_path: Path) -> None:
    path = make_ablation(tmp_path)
    done = ablate(path)
    assert done.returncode == 0, done.stdout
    for seed in (1, 2):
        assert own_trajectories(run_of(path, "best", seed))
        for arm in ("two", "short"):
            fork = run_of(path, arm, seed)
            assert not own_trajectories(fork)
            [base] = fork.path.glob("arms/test/*/base")
            assert (base / REFERENCES).exists() and not list(base.glob("*.jsonl")), "the base model is asked once"
    first, second = (keys(run_of(path, "two", seed)) for seed in (1, 2))
    assert len(first) == SAMPLED and not set(first) & set(second)
    best, two, short = table(path)
    assert [row["arm"] for row in (best, two, short)] == ["best", "two", "short"]
    for row in (best, two, short):
        for seed in (1, 2):
            results = read_results(results_path(run_of(path, row["arm"], seed).round(1), "test"))
            assert results is not None and (trained := results.arm("adapter")) is not None
            assert float(row[f"mean_seed_{seed}"]) == pytest.approx(trained.measures["f1"].mean)
    gain = sum(float(two[f"mean_seed_{seed}"]) - float(best[f"mean_seed_{seed}"]) for seed in (1, 2)) / 2
    assert float(two["difference"]) == pytest.approx(gain) and best["difference"] == ""
    assert r"\toprule" in (path.parent / "run/ablations/arms/table.tex").read_text()
    text = path.parent / "run/ablations/arms/table.txt"
    assert "paired by question and seed" in text.read_text()

    entries, before = read_ledger(run_of(path, "two", 2)), text.read_text()
    again = ablate(path)
    assert again.returncode == 0 and read_ledger(run_of(path, "two", 2)) == entries and text.read_text() == before
    (path.parent / "arms.yaml").write_text(ARMS.replace("[rewards.select.ties=2]", ""))
    assert "which its arm no longer has: give the arm another name" in ablate(path).stdout


def keys(run: RunFolder) -> list[str]:
    return [one.key for one in TrajectoryStore(run.round(1).trajectories).read()]


@pytest.mark.slow
def test_parts_sample_what_they_need_and_one_failure_stops_no_other(tmp_path: Path) -> None:
    path = make_ablation(tmp_path, "best:\nnone: [rewards.select.min_reward=2]\nother: [sampling.temperature=0.2]\n")
    assert ablate(path, "--part", "1/3", seeds="1").returncode == 1
    assert keys(run_of(path, "none", 1)) == keys(run_of(path, "best", 1)), "the arm that it reads from was sampled"
    sampled = ablate(path, "--phase", "sample", seeds="1")
    assert sampled.returncode == 0 and "2 of 2 runs are done" in sampled.stdout
    assert len(keys(run_of(path, "other", 1))) == SAMPLED and not run_of(path, "other", 1).round(1).selection.exists()
    assert ablate(path, "--part", "0/3", seeds="1").returncode == 0
    done = ablate(path, "--phase", "table", seeds="1")
    assert done.returncode == 1 and "other, seed 1: score and select: not done yet" in done.stdout
    assert [row["mean_seed_1"] != "" for row in table(path)] == [True, False, False]
    done = ablate(path, seeds="1")
    assert done.returncode == 1 and "none, seed 1: score and select: not done yet" in done.stdout
    assert [row["mean_seed_1"] != "" for row in table(path)] == [True, False, True]


@pytest.mark.slow
def test_the_run_of_the_config_is_read_where_it_samples_alike(tmp_path: Path) -> None:
    path = make_ablation(tmp_path)
    assert command("-m", "ratchet", "sample", "--config", str(path)).returncode == 0
    assert ablate(path, "--part", "0/3", seeds="0").returncode == 0
    assert not own_trajectories(run_of(path, "best", 0)) and len(keys(run_of(path, "best", 0))) == SAMPLED


@pytest.mark.slow
def test_a_killed_ablation_is_finished_by_the_same_command(tmp_path: Path) -> None:
    path = make_ablation(tmp_path, delay=0.02)
    process = subprocess.Popen([sys.executable, *words(path, seeds="1")], cwd=ROOT, env=preloaded())
    wait_for(lambda: (run_of(path, "two", 1).path / "ledger.jsonl").exists(), process=process)
    kill(process)
    finished = read_ledger(run_of(path, "best", 1))
    done = ablate(path, seeds="1")
    assert done.returncode == 0, done.stdout
    assert read_ledger(run_of(path, "best", 1)) == finished, "what was finished is not repeated"
    assert all(len(keys(run_of(path, arm, 1))) == SAMPLED for arm in ("best", "two", "short"))
    assert all(float(row["mean_seed_1"]) >= 0 for row in table(path))


@pytest.mark.parametrize(
    ("arms", "problem"),
    [
        ("best: [seed=3]", "best: seed=3: every run has its own; remove it"),
        ("best: rewards.select.ties=1", "best: expected a list of KEY=VALUE"),
        ("best: [rewards.select.tis=1]", "unknown key"),
        ("paid: ['rewards.weights={searches: 1}']", "error: paid: "),
        ("a b: []\na/b: []", "none like another but for its punctuation"),
        ("{}", "name at least one arm"),
        ("- best", "arms.yaml: expected a mapping of the arms' names to lists of KEY=VALUE"),
    ],
)
def test_a_wrong_arm_is_an_error_before_anything_runs(tmp_path: Path, arms: str, problem: str) -> None:
    path = make_experiment(tmp_path, questions=1)
    (tmp_path / "arms.yaml").write_text(arms)
    done = ablate(path)
    assert done.returncode == 2 and problem in done.stdout
    assert not (tmp_path / "run").exists()


def test_a_part_whose_trajectories_another_part_is_sampling_says_what_comes_first(tmp_path: Path) -> None:
    path = make_ablation(tmp_path)
    with Lock(run_of(path, "best", 1).path / LOCK, "this run"):
        done = ablate(path, "--part", "1/3", seeds="1")
    assert done.returncode == 1 and "another process is writing this run" in done.stdout
    assert "before parts that run at the same time, run the same with --phase sample" in done.stdout
