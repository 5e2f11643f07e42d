"""The lines of a store as the page reads them, which questions of many are shown, and the code that made a run."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, read_json_file, write_jsonl
from ratchet.core.records import QuestionChoice, Trajectory
from ratchet.core.runfolder import RoundFolder
from ratchet.questions.manifest import open_run
from ratchet.report.gather import choose_mixed, spread
from ratchet.report.records import Replaced, StoreLines
from ratchet.rewards.selection import strict_reward
from ratchet.rewards.store import stored_scores
from ratchet.rounds.records import Entry
from ratchet.sampling.store import FIRST_SEGMENT, TrajectoryStore
from tests.helpers.handmade_run import SCORES, add_sampling, add_selection, make_config, questions_of
from tests.helpers.reported import gathered

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
    lines.update()
    assert keys(lines) == [t.key for t in made[:5]]
    with segment.open("ab") as file:
        file.write(parts[5][100:] + b"".join(parts[6:]))
    lines.update()
    assert keys(lines) == [t.key for t in made]
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


def choice(number: int, kept: bool, rewards: int = 4) -> QuestionChoice:
    keys = {f"{number}-{i}": (i / 4 if i < rewards else None) for i in range(4)}
    return QuestionChoice(
        question_id=f"q{number:02d}",
        kept=(f"{number}-3",) if kept else (),
        cause="kept" if kept else "reward_too_low",
        reason="r",
        rewards=keys,
    )


def test_a_mix_is_half_kept_and_half_dropped_in_order_and_fills_up_from_the_other() -> None:
    choices = [choice(i, kept=i % 10 == 0) for i in range(40)]
    ids = choose_mixed(choices, 6)
    kept = {c.question_id for c in choices if c.kept}
    assert len(ids) == 6 and ids == sorted(ids)
    assert sum(i in kept for i in ids) == 3
    assert len(choose_mixed(choices, 20)) == 20 and kept <= set(choose_mixed(choices, 20))
    assert len(choose_mixed(choices, 100)) == 40


@given(st.integers(0, 50), st.integers(1, 20))
def test_a_spread_is_ordered_distinct_and_no_longer_than_asked(count: int, limit: int) -> None:
    found = spread([f"{i:02d}" for i in range(count)], limit)
    assert len(found) == min(count, limit) == len(set(found))
    assert found == sorted(found)


def test_stages_of_other_code_than_began_the_run_are_said(tmp_path: Path) -> None:
    config = make_config(tmp_path, train=1, test=1, dev=1)
    run = open_run(config)
    patched = Entry(
        round=1, stage="score", member="", inputs={}, outputs={}, facts={}, began="2026-11-28T08:00:00", seconds=1.0,
        machine="here", code="abc+changes", anyway="the index is another",
    )  # fmt: skip
    with Segment(run.ledger) as ledger:
        ledger.extend([patched, patched, patched.model_copy(update={"code": "", "anyway": ""})])
    found = gathered(config, run.round(1))
    began = read_json_file(run.manifest)["code"]
    assert found.code == (began, "abc+changes")
    assert not any("--anyway" in line for line in found.missing), "the last entry of a stage counts"
