"""The whole loop through its real commands: what it leaves behind, and that SIGKILLs change nothing of it."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM

from ratchet.core.config import load_config
from ratchet.core.files import read_segments
from ratchet.core.records import Selection, Trajectory
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.rounds.ledger import read_ledger
from ratchet.rounds.stages import ExperimentRun, stages_of
from ratchet.training.rows import check_rows, read_rows, table_rows
from tests.helpers.experiment import ROOT, kill, make_experiment, preloaded


def trajectories(round_folder: RoundFolder) -> list[Trajectory]:
    return list(read_segments(round_folder.trajectories, Trajectory))


def selection(round_folder: RoundFolder) -> Selection:
    return Selection.model_validate_json(round_folder.selection.read_text())


def outcome(trajectory: Trajectory) -> tuple[object, ...]:
    """What a trajectory came to, without how long it took."""
    tokens = tuple((c.role, c.ids, str(c.spans)) for c in trajectory.conversations)
    return trajectory.key, trajectory.status, trajectory.answer, tokens


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """An experiment run without a disturbance, and how long each stage took."""
    config = make_experiment(tmp_path_factory.mktemp("calm"), delay=0.05)
    for words in (["--dry-run"], []):  # twice, so that the first stage's time has no loading in it
        line = [sys.executable, "selftrain.py", *words, "--config", str(config)]
        done = subprocess.run(line, cwd=ROOT, env=preloaded(), check=True, stdout=subprocess.PIPE, text=True)
    (config.parent / "said.txt").write_text(done.stdout)
    return config, {entry.stage: entry.seconds for entry in read_ledger(RunFolder(config.parent / "run"))}


@pytest.mark.slow
def test_a_run_leaves_everything_behind(finished: tuple[Path, dict[str, float]]) -> None:
    run = RunFolder(finished[0].parent / "run")
    one = run.round(1)
    sampled = trajectories(one)
    assert len(sampled) == 8 * 4 and len({t.key for t in sampled}) == 32
    assert len({t.status for t in sampled}) > 1, "the script makes some trajectories fail"
    chosen = selection(one)
    assert chosen.kept and all(choice.reason for choice in chosen.questions)
    assert json.loads((one.evaluation / "results.json").read_text())["arms"]
    assert "<html" in run.report.read_text()
    said = (run.path.parent / "said.txt").read_text()
    screen = said.rpartition(" MB\n")[2].splitlines()
    assert 12 < len(screen) <= 25 and screen[-1].endswith(f"the report is {run.report}")
    assert max(map(len, screen[:-1])) <= 80 and said.count("difference from base") == 1
    base = AutoModelForCausalLM.from_pretrained(finished[0].parent / "model")
    PeftModel.from_pretrained(base, one.adapter)


@pytest.mark.slow
def test_sampled_ids_are_the_training_labels(finished: tuple[Path, dict[str, float]]) -> None:
    one = RunFolder(finished[0].parent / "run").round(1)
    by_key = {t.key: t for t in trajectories(one)}
    rows = list(table_rows(read_rows(one.rows).table))
    kept = set(selection(one).kept)
    assert {row.trajectory for row in rows} == kept
    assert check_rows(rows, by_key) == sum(
        call.parse != "malformed" and call.finish_reason == "stop" for key in kept for call in by_key[key].model_calls
    )


@pytest.mark.slow
def test_two_sigkills_in_every_stage_lose_and_repeat_nothing(
    finished: tuple[Path, dict[str, float]], tmp_path: Path
) -> None:
    calm, seconds = finished
    config = make_experiment(tmp_path, delay=0.05)
    dice = random.Random(11)
    kills = 0
    for stage in stages_of(ExperimentRun(load_config(config), ("--config", str(config)))):
        for part in (0.5, 0.9):  # somewhere in the first half (mostly start-up), and where the work is
            process = subprocess.Popen(stage.command, cwd=ROOT, env=preloaded())
            time.sleep(seconds[stage.id] * dice.uniform(part - 0.4, part))
            kill(process)
            kills += 1
        subprocess.run(stage.command, cwd=ROOT, env=preloaded(), check=True)
    assert kills >= 10
    quiet, noisy = (RunFolder(path.parent / "run").round(1) for path in (calm, config))

    assert len(trajectories(noisy)) == len({t.key for t in trajectories(noisy)}), "nothing was sampled twice"
    assert sorted(map(outcome, trajectories(noisy))) == sorted(map(outcome, trajectories(quiet))), "nothing was lost"
    assert selection(noisy) == selection(quiet)
    assert base_scores(noisy) == base_scores(quiet)


def base_scores(round_folder: RoundFolder) -> list[object]:
    """What the base model's evaluation came to. The adapter's is keyed by its weights, equal only up to rounding."""
    results = json.loads((round_folder.evaluation / "results.json").read_text())
    assert [arm["name"] for arm in results["arms"]] == ["base", "adapter"]
    base = results["arms"][0]
    return [base["statuses"], base["measures"]["em"], base["measures"]["f1"]]
