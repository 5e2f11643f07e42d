"""The index over a run's trajectories: what it holds, how it follows the files, and that it is built again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ratchet.config import Config
from ratchet.files import write_jsonl
from ratchet.records import Trajectory
from ratchet.runfolder import RoundFolder
from report.watch.index import Indexer, Stale, delete_database, open_database
from report.watch.query import Filters, counts, find
from rewards.selection import strict_reward
from rewards.store import stored_scores
from sampling.store import FIRST_SEGMENT, TrajectoryStore
from tests.helpers.handmade_run import (
    SCORES,
    add_sampling,
    add_selection,
    make_config,
    make_run,
    questions_of,
)

Keys = Callable[..., list[str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, RoundFolder]:
    return make_run(tmp_path_factory.mktemp("run"), train=6, test=6)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    opened = open_database(tmp_path / "cache" / "index.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def run(tmp_path: Path) -> tuple[Config, RoundFolder, list[Trajectory]]:
    """A round that was only sampled."""
    config = make_config(tmp_path, train=4)
    folder = RoundFolder(config.folder / "round-1")
    return config, folder, add_sampling(config, folder, samples=3)


def fill(indexer: Indexer) -> None:
    while not indexer.step().is_complete:
        pass


def keys(database: sqlite3.Connection, **filters: object) -> set[str]:
    return {row["key"] for row in find(database, Filters.model_validate({"limit": 200, **filters}))["rows"]}


def test_filters_find_what_the_records_say(finished: tuple[Config, RoundFolder], database: sqlite3.Connection) -> None:
    config, folder = finished
    fill(Indexer(config, database))
    sampled = list(TrajectoryStore(folder.trajectories).read())
    selection = folder.read_selection()
    assert selection is not None
    rewards = {key: value for choice in selection.questions for key, value in choice.rewards.items()}
    kinds = {question.id: question.kind for question in questions_of("train", 6)}
    store = "round-1/trajectories"
    expected: list[tuple[dict[str, object], set[str]]] = [
        ({}, {t.key for t in sampled}),
        ({"status": "unparsed"}, {t.key for t in sampled if t.status == "unparsed"}),
        ({"kept": "yes"}, set(selection.kept)),
        ({"kept": "no"}, {t.key for t in sampled} - set(selection.kept)),
        ({"kind": "two hops"}, {t.key for t in sampled if kinds[t.question_id] == "two hops"}),
        ({"role": "answerer"}, {t.key for t in sampled if any(c.role == "answerer" for c in t.model_calls)}),
        ({"min": 0.5}, {key for key, value in rewards.items() if value is not None and round(value, 2) >= 0.5}),
        ({"max": 0.3}, {key for key, value in rewards.items() if value is not None and round(value, 2) <= 0.3}),
        ({"text": "agnt"}, {t.key for t in sampled if any("agnt" in c.text for c in t.model_calls)}),
        ({"text": "OLDER lightho"}, {t.key for t in sampled if kinds[t.question_id] == "comparison"}),
        ({"text": "nowhere"}, set()),
    ]
    for filters, wanted in expected:
        assert keys(database, store=store, **filters) == wanted, filters
    assert len([wanted for _, wanted in expected if wanted]) == 10
    best = find(database, Filters(store=store, order="best", limit=200))["rows"]
    known = [row["reward"] for row in best if row["reward"] is not None]
    assert known == sorted(known, reverse=True) and best[-1]["reward"] is None
    assert {key: row["reward"] for row in best for key in [row["key"]]} == rewards


def test_pages_are_parts_of_one_list(finished: tuple[Config, RoundFolder], database: sqlite3.Connection) -> None:
    fill(Indexer(finished[0], database))
    whole = find(database, Filters(limit=200))
    parts = [find(database, Filters(limit=7, offset=at)) for at in range(0, whole["total"], 7)]
    assert [row for part in parts for row in part["rows"]] == whole["rows"] and len(whole["rows"]) == whole["total"]


def test_counts_are_those_of_the_stores(finished: tuple[Config, RoundFolder], database: sqlite3.Connection) -> None:
    config, folder = finished
    fill(Indexer(config, database))
    found = {one["title"]: one for one in counts(database)["stores"]}
    assert list(found) == ["round 1", "test: trained", "test: base", "test: no retrieval"]
    sampled = list(TrajectoryStore(folder.trajectories).read())
    assert found["round 1"]["planned"] == found["round 1"]["done"] == len(sampled)
    assert found["round 1"]["endings"] == {s: n for s in ("finished", "unparsed", "out_of_budget", "failed")
                                           if (n := sum(t.status == s for t in sampled))}  # fmt: skip


def test_a_growing_run_is_followed(
    run: tuple[Config, RoundFolder, list[Trajectory]], database: sqlite3.Connection
) -> None:
    config, folder, made = run
    segment = folder.trajectories / FIRST_SEGMENT
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:5]) + lines[5][:100])
    indexer = Indexer(config, database)
    assert not indexer.step().is_complete and keys(database) == {t.key for t in made[:5]}
    with segment.open("ab") as file:
        file.write(lines[5][100:] + b"".join(lines[6:]))
    fill(indexer)
    assert keys(database) == {t.key for t in made}
    assert all(row["reward"] is None for row in find(database, Filters())["rows"])

    add_selection(config, folder, made)
    questions = {question.id: question for question in questions_of("train", 4)}
    folder.selection.unlink()
    fill(indexer)
    scores = stored_scores(folder.scores, {t.key for t in made})
    weights = {str(name): weight for name, weight in config.rewards.weights.items()}
    keep = config.rewards.select.keep_status
    expected = {t.key: strict_reward(questions[t.question_id], t, scores, weights, keep) for t in made}
    assert {row["key"]: row["reward"] for row in find(database, Filters())["rows"]} == pytest.approx(expected)
    assert not keys(database, kept="yes") and len(scores) == len(made) * len(SCORES)


def test_of_several_tries_the_one_that_counts_is_listed(
    run: tuple[Config, RoundFolder, list[Trajectory]], database: sqlite3.Connection
) -> None:
    config, folder, made = run
    failed = made[0].model_copy(update={"status": "failed", "answer": ""})
    again = made[1].model_copy(update={"answer": "a duplicate that does not count"})
    foreign = made[2].model_copy(update={"key": "f" * 32})
    write_jsonl(folder.trajectories / FIRST_SEGMENT, [failed, *made[1:], again, foreign])
    indexer = Indexer(config, database)
    fill(indexer)
    assert {row["key"] for row in find(database, Filters(status="failed"))["rows"]} >= {failed.key}
    write_jsonl(folder.trajectories / "part-1.jsonl", [made[0]])
    fill(indexer)
    listed = {row["key"]: row for row in find(database, Filters())["rows"]}
    assert listed[failed.key]["status"] == made[0].status and foreign.key not in listed
    assert listed[again.key]["answer"] == made[1].answer[:300]
    assert set(listed) == {t.key for t in TrajectoryStore(folder.trajectories).read()}


def test_a_damaged_line_is_named_and_the_others_are_listed(
    run: tuple[Config, RoundFolder, list[Trajectory]], database: sqlite3.Connection
) -> None:
    config, folder, made = run
    segment = folder.trajectories / FIRST_SEGMENT
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([lines[0], b'{"key": "x"\n', *lines[1:]]))
    fill(Indexer(config, database))
    [damaged] = counts(database)["damaged"]
    assert damaged["path"] == str(segment) and damaged["line"] == 2
    assert keys(database) == {t.key for t in made}


def test_a_segment_that_was_replaced_starts_the_index_again(
    run: tuple[Config, RoundFolder, list[Trajectory]], database: sqlite3.Connection
) -> None:
    config, folder, made = run
    indexer = Indexer(config, database)
    fill(indexer)
    write_jsonl(folder.trajectories / FIRST_SEGMENT, made[:2])
    with pytest.raises(Stale, match=FIRST_SEGMENT):
        indexer.step()


def test_an_index_resumes_and_a_damaged_one_is_noticed(
    run: tuple[Config, RoundFolder, list[Trajectory]], tmp_path: Path
) -> None:
    config, folder, made = run
    path = tmp_path / "cache" / "index.sqlite"
    first = open_database(path)
    fill(Indexer(config, first))
    first.close()
    segment = folder.trajectories / FIRST_SEGMENT
    size = segment.stat().st_size
    with segment.open("r+b") as file:
        file.write(b"#" * (size - 1))  # what was indexed is not read again
    second = open_database(path)
    Indexer(config, second).step()
    assert keys(second) == {t.key for t in made} and not counts(second)["damaged"]
    second.close()
    path.write_bytes(b"no database at all " * 400)
    with pytest.raises(Stale):
        open_database(path)
    delete_database(path)
    assert not list(path.parent.iterdir())
