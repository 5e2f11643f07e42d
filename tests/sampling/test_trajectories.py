"""Whole trajectories that are read one at a time, beside outlines in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.errors import UserError
from ratchet.sampling.store import RECENT, Trajectories
from tests.helpers.handmade_run import questions_of, trajectory
from tests.helpers.stored import store


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
