"""The lines of a store: what is read of it as it is written, and that details are read from their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import write_jsonl
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RoundFolder
from ratchet.report.records import Replaced, StoreLines
from ratchet.rewards.selection import strict_reward
from ratchet.rewards.store import stored_scores
from ratchet.sampling.store import FIRST_SEGMENT, TrajectoryStore
from tests.helpers.handmade_run import SCORES, add_sampling, add_selection, make_config, questions_of

Sampled = tuple[Config, RoundFolder, list[Trajectory], StoreLines]


@pytest.fixture
def sampled(tmp_path: Path) -> Sampled:
    """A round that was only sampled."""
    config = make_config(tmp_path, train=4)
    folder = RoundFolder(config.folder / "round-1")
    made = add_sampling(config, folder, samples=3)
    questions = {question.id: question for question in questions_of("train", 4)}
    return config, folder, made, StoreLines(
        TrajectoryStore(folder.trajectories), folder.scores, questions, config.rewards
    )  # fmt: skip


def keys(lines: StoreLines) -> list[str]:
    return [line.trajectory.key for line in lines.lines()]


def test_a_growing_store_is_followed_and_its_rewards_are_those_of_selection(sampled: Sampled) -> None:
    config, folder, made, lines = sampled
    segment = folder.trajectories / FIRST_SEGMENT
    parts = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(parts[:5]) + parts[5][:100])
    assert lines.update() < 1 and keys(lines) == [t.key for t in made[:5]]
    assert lines.update(seconds=0) < 1
    with segment.open("ab") as file:
        file.write(parts[5][100:] + b"".join(parts[6:]))
    assert lines.update() == 1 and keys(lines) == [t.key for t in made]
    assert all(lines.reward(line) is None for line in lines.lines())
    add_selection(config, folder, made)
    lines.update()
    scores = stored_scores(folder.scores, {t.key for t in made})
    assert len(scores) == len(made) * len(SCORES)
    for trajectory, line in zip(made, lines.lines(), strict=True):
        weights, keep = config.rewards.weights, config.rewards.select.keep_status
        expected = strict_reward(lines.question(trajectory), trajectory, scores, weights, keep)
        assert lines.reward(line) == expected and line.read() == trajectory


def test_of_several_tries_the_one_that_counts_is_listed(sampled: Sampled) -> None:
    _, folder, made, lines = sampled
    failed = made[0].model_copy(update={"status": "failed", "answer": ""})
    again = made[1].model_copy(update={"answer": "a duplicate that does not count"})
    foreign = made[2].model_copy(update={"key": "f" * 32})
    write_jsonl(folder.trajectories / FIRST_SEGMENT, [failed, *made[1:], again, foreign])
    lines.update()
    assert keys(lines) == [*(t.key for t in made[1:]), failed.key]
    write_jsonl(folder.trajectories / "part-1.jsonl", [made[0]])
    lines.update()
    assert {line.trajectory.key: line.trajectory.answer for line in lines.lines()} == {t.key: t.answer for t in made}
    assert keys(lines) == [t.key for t in TrajectoryStore(folder.trajectories).read()]


def test_a_damaged_line_is_named_and_the_others_are_listed(sampled: Sampled) -> None:
    _, folder, made, lines = sampled
    segment = folder.trajectories / FIRST_SEGMENT
    parts = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([parts[0], b'{"key": "x"\n', *parts[1:]]))
    lines.update()
    [damaged] = lines.damaged
    assert damaged.startswith(f"{segment}:2: not a Trajectory") and keys(lines) == [t.key for t in made]


def test_details_are_read_from_their_place_alone(sampled: Sampled) -> None:
    _, folder, made, lines = sampled
    lines.update()
    segment = folder.trajectories / FIRST_SEGMENT
    parts = segment.read_bytes().splitlines(keepends=True)
    with segment.open("r+b") as file:
        file.write(b"".join(part if n == 3 else b"#" * (len(part) - 1) + b"\n" for n, part in enumerate(parts)))
    assert lines.lines()[3].read() == made[3]
    with pytest.raises(UserError, match=FIRST_SEGMENT):
        lines.lines()[2].read()
    write_jsonl(segment, made[:2])
    with pytest.raises(Replaced, match=FIRST_SEGMENT):
        lines.update()
