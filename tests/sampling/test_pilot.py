"""A pilot of every question, then the rest of one budget by what the pilot came to."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from ratchet.commands.index import main as build_index
from ratchet.commands.sample import main as sampling
from ratchet.commands.score import main as rewards
from ratchet.core.config import SamplingConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.files import count_lines
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.rounds.ledger import latest_entries
from ratchet.rounds.stage import ExperimentRun
from ratchet.rounds.stages import stages_of
from ratchet.rounds.status import stage_progress
from ratchet.sampling.allocation import allocate
from ratchet.sampling.store import TrajectoryStore
from tests.helpers.experiment import ROOT, kill, make_experiment, preloaded

SAMPLES, QUESTIONS = 6, 8


@pytest.mark.parametrize("samples", [3, 5, 8, 21])
def test_the_budget_is_spent_exactly_and_where_the_pilot_failed(samples: int) -> None:
    successes = {"never": 0, "once": 1, "always": 2, "never either": 0, "always too": 2}
    by_name = allocate(successes, 2, samples).questions
    assert sum(by_name.values()) == samples * 5
    assert min(by_name.values()) >= 2 and by_name["never"] >= by_name["once"] >= by_name["always"]
    assert abs(by_name["never"] - by_name["never either"]) <= 1


def test_shares_follow_the_rule_of_succession() -> None:
    assert allocate({"a": 0, "b": 4}, 4, 10).questions == {"a": 4 + 10, "b": 4 + 2}
    assert allocate({"a": 4, "b": 4}, 4, 6).questions == {"a": 6, "b": 6}


def test_a_pilot_that_leaves_nothing_to_divide_is_refused() -> None:
    with pytest.raises(ValidationError, match="pilot: 4 of 4 samples leaves none to divide"):
        SamplingConfig(samples=4, pilot=4)


def start(folder: Path, delay: float = 0.0, **sampling_settings: Any) -> tuple[Path, RoundFolder]:
    path = make_experiment(folder, QUESTIONS, delay)
    script = folder / "script.jsonl"
    rules = [json.loads(line) for line in script.read_text().splitlines()]
    answer = next(rule for rule in rules if rule.get("prompt") == "Answer the question")
    answer["replies"] = ['{"answer": "nobody"}'] * 3 + ['{"answer": "Ada Torrin"}']
    script.write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    settings = yaml.safe_load(path.read_text())
    settings["sampling"] |= {"samples": SAMPLES, "pilot": 2, **sampling_settings}
    path.write_text(yaml.safe_dump(settings))
    build_index(["--config", str(path)])
    return path, RunFolder(folder / "run").round(1)


def contents(folder: RoundFolder) -> dict[str, dict[str, Any]]:
    """The planned trajectories without their times."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: timeless(one) for key, one in value.items() if key not in ("at", "seconds", "cached_tokens")}
        return [timeless(one) for one in value] if isinstance(value, list) else value

    return {one.key: timeless(one.model_dump(mode="json")) for one in TrajectoryStore(folder.trajectories).read()}


def test_a_round_with_a_pilot_spends_the_budget_of_one_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = start(tmp_path)
    asked = ["--config", str(path)]
    sampling(asked)
    assert "They are the pilot" in capsys.readouterr().out and not folder.samples.exists()
    pilot = contents(folder)
    assert len(pilot) == 2 * QUESTIONS and {one["sample"] for one in pilot.values()} == {0, 1}
    rewards(asked)
    assert "Pilot" in capsys.readouterr().out and not folder.selection.exists()
    with pytest.raises(
        UserError, match=rf"{(SAMPLES - 2) * QUESTIONS} trajectories after the pilot are not sampled yet"
    ):
        rewards(asked)
    sampling(asked)
    every = contents(folder)
    assert len(every) == SAMPLES * QUESTIONS and pilot.items() <= every.items(), "the pilot is not sampled again"
    rewards(asked)
    assert folder.read_selection() is not None
    run = ExperimentRun(load_config(path), ())
    entries = latest_entries(run.run)
    assert [key.id for key in entries][-4:] == ["sample.pilot", "score.pilot", "sample", "score"]
    [entry] = [one for key, one in entries.items() if key.id == "sample"]
    assert entry.facts["trajectories"] == SAMPLES * QUESTIONS
    [of_pilot] = [one for key, one in entries.items() if key.id == "sample.pilot"]
    assert 0 < of_pilot.facts["new_tokens"] < entry.facts["new_tokens"]
    [stage] = [stage for stage in stages_of(run) if stage.id == "sample"]
    assert stage_progress(run, stage) == "48 of 48 trajectories"


@pytest.mark.slow
def test_a_killed_second_pass_resumes_what_was_decided(tmp_path: Path) -> None:
    path, folder = start(tmp_path, delay=0.02, concurrency=2)
    for command in (sampling, rewards):
        command(["--config", str(path)])
    decided = folder.samples.read_bytes()
    started = [sys.executable, "-m", "ratchet", "sample", "--config", str(path)]
    process = subprocess.Popen(started, cwd=ROOT, env=preloaded(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while count_lines(folder.trajectories.glob("part-*.jsonl")) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    kill(process)
    before = contents(folder)
    assert 2 * QUESTIONS + 5 <= len(before) < SAMPLES * QUESTIONS
    sampling(["--config", str(path)])
    after = contents(folder)
    assert len(after) == SAMPLES * QUESTIONS and before.items() <= after.items()
    assert count_lines(TrajectoryStore(folder.trajectories).segments) == SAMPLES * QUESTIONS, (
        "nothing was sampled twice"
    )
    assert folder.samples.read_bytes() == decided
