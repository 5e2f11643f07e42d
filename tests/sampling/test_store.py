"""Trajectories that are read one at a time, and how many an hour commands make."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.commands.sample import sample_round
from ratchet.core.config import load_config
from ratchet.core.errors import UserError
from ratchet.core.files import count_lines, segment_files
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.rounds.ledger import latest_entries
from ratchet.sampling.store import RECENT, Trajectories, TrajectoryStore
from ratchet.sampling.work import Work, work_on
from tests.helpers.commands import command_of
from tests.helpers.experiment import ROOT, make_experiment, preloaded, running
from tests.helpers.handmade_run import questions_of, trajectory
from tests.helpers.reported import page
from tests.helpers.stored import store
from tests.helpers.waiting import wait_for


def test_each_is_the_whole_record_of_its_outline(tmp_path: Path) -> None:
    made = [trajectory(question, sample, 0.5) for question in questions_of("train", 10) for sample in range(3)]
    stored, held = store(tmp_path, made).open(), Trajectories.of(made)
    assert list(stored) == [one.key for one in made] and list(stored.values()) == made == list(held.values())
    assert dict(stored.outlines) == dict(held.outlines), "a record has one digest, on disk and in memory"
    assert len({outline.content for outline in stored.outlines.values()}) == len(made) > RECENT


def test_another_event_is_another_content(tmp_path: Path) -> None:
    one = trajectory(questions_of("train", 1)[0], 0, 0.5)
    search = next(event for event in one.events if event.kind == "search")
    events = tuple(event.model_copy(update={"query": "another"}) if event is search else event for event in one.events)
    first, second = (Trajectories.of([each]).outlines for each in (one, one.model_copy(update={"events": events})))
    assert first[one.key].content != second[one.key].content


def test_a_file_that_was_replaced_meanwhile_is_an_error(tmp_path: Path) -> None:
    first, second = (trajectory(question, 0, 0.5) for question in questions_of("train", 2))
    opened = store(tmp_path, [first, second]).open()
    store(tmp_path, [second, first])
    with pytest.raises(UserError, match=r"part-0\.jsonl"):
        print(opened[first.key])


build_index = command_of("index")
main = command_of("sample")


def tokens_of(trajectories: list[Trajectory]) -> tuple[int, int]:
    """The prompt and the new tokens of all calls."""
    calls = [call for trajectory in trajectories for call in trajectory.model_calls]
    return sum(call.prompt_tokens for call in calls), sum(call.new_tokens for call in calls)


@pytest.mark.slow
def test_a_resumed_command_counts_its_own_work_and_the_run_that_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_experiment(tmp_path, 6)
    build_index(["--config", str(path)])
    config = load_config(path)
    folder = RunFolder(config.folder).round(1)
    first = sample_round(config, first=2)
    capsys.readouterr()
    main(["--config", str(path)])
    every = list(TrajectoryStore(folder.trajectories).read())
    own = [one for one in every if one.key not in first.keys]
    assert len(own) == 4 * config.sampling.samples
    last = capsys.readouterr().out.splitlines()[-1]
    tokens = r"([\d,]+) prompt tokens \([\d,]+ cached\) and ([\d,]+) new tokens"
    found = re.fullmatch(rf"mrag: ([\d,]+) trajectories an hour: (\d+) in \w+, with {tokens}", last)
    assert found, last
    rate, count, prompt, new = (int(number.replace(",", "")) for number in found.groups())
    assert (count, (prompt, new)) == (len(own), tokens_of(own)) and rate > 0
    main(["--config", str(path)])
    assert "an hour" not in capsys.readouterr().out, "nothing was left to sample"

    together = work_on(folder.trajectories)
    assert together and together.seconds > first.work.seconds
    assert (together.trajectories, (together.prompt_tokens, together.new_tokens)) == (len(every), tokens_of(every))
    [entry] = [entry for key, entry in latest_entries(RunFolder(config.folder)).items() if key.id == "sample"]
    assert entry.facts == {
        "trajectories": len(every),
        "trajectories_an_hour": round(together.an_hour, 1),
        "prompt_tokens": together.prompt_tokens,
        "new_tokens": together.new_tokens,
    }
    assert f"<p>Sampling: {together.text}.</p>" in page(config, folder)


@pytest.mark.slow
def test_the_work_of_an_interrupted_command_counts(tmp_path: Path) -> None:
    path = make_experiment(tmp_path, 8, delay=0.05)
    build_index(["--config", str(path)])
    folder = RunFolder(load_config(path).folder).round(1)
    command = [sys.executable, "-m", "ratchet", "sample", "--config", str(path), "--set", "sampling.samples=50"]
    with subprocess.Popen(command, cwd=ROOT, env=preloaded(), stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: count_lines(segment_files(folder.trajectories)) > 4)
        os.kill(running(process), signal.SIGINT)
    work = work_on(folder.trajectories)
    assert work and 4 < work.trajectories == count_lines(segment_files(folder.trajectories)) < 400


def test_the_rate_counts_what_did_not_fail_over_the_time_of_sampling(tmp_path: Path) -> None:
    assert Work().an_hour == 0.0
    ended = {"key": "k", "question_id": "q", "system": "mrag", "policy": "base", "sample": 0, "seed": 0, "answer": "a"}
    work = Work(seconds=30.0)
    for status in ("finished", "unparsed", "out_of_budget", "failed"):
        work.add(Trajectory(**ended, status=status))
    assert work.an_hour == 360.0
    assert work.text == "360 trajectories an hour: 3 in 30s, with 0 prompt tokens (0 cached) and 0 new tokens"
    assert work_on(tmp_path / "trajectories") is None
    for segment in ("part-1.jsonl", "part-0.jsonl", "part-0.jsonl"):
        work.keep(tmp_path / "trajectories", segment)
    assert [path.name for path in sorted(tmp_path.glob("*.jsonl"))] == [
        "sampling-part-0.jsonl",
        "sampling-part-1.jsonl",
    ]
    every = work_on(tmp_path / "trajectories")
    assert every and (every.seconds, every.trajectories, every.an_hour) == (90.0, 9, 360.0)
