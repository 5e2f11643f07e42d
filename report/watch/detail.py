"""One trajectory as the report shows it, read by its place in the segment; nothing else of the run is loaded."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.records import Question, QuestionChoice, Score, Trajectory
from report.gather import Section
from report.messages import MessageDecoder
from report.stores import StoredPass
from report.training import TrainedRows, read_trained
from report.view import section_view
from report.watch.index import Stale
from report.watch.query import place_of, siblings_of

Json = dict[str, Any]


class TrajectoryReader:
    """Opens trajectories; tokenizers are loaded with the first one."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._decoder = MessageDecoder(config)
        self._one_at_a_time = threading.Lock()

    def read(self, database: sqlite3.Connection, passes: Mapping[str, StoredPass], key: str) -> Json | None:
        """{section, chunk, passages, siblings, notes, file} of a trajectory; None for an unknown key. Raises Stale."""
        row = place_of(database, key)
        if row is None or row["store"] not in passes:
            return None
        one = passes[row["store"]]
        trajectory = _read_trajectory(row)
        question = _question(database, one, trajectory)
        choice = _choice(database, one, trajectory.question_id)
        notes: list[str] = []
        with self._one_at_a_time:
            messages = tuple(self._decoder.decode(conversation) for conversation in trajectory.conversations)
            notes += self._decoder.problems
        section = Section(
            name="sampled" if one.selection else "evaluated",
            title=one.title,
            total=1,
            questions=(question,),
            trajectories={trajectory.question_id: [("", trajectory)]},
            scores={trajectory.key: _scores(database, one, trajectory.key)},
            messages={trajectory.key: messages},
        )
        trained = self._trained(database, one, trajectory.key, notes) if row["kept"] else {}
        passages: dict[str, Json] = {}
        choices = {choice.question_id: choice} if choice else {}
        shown, [chunk] = section_view(section, choices, trained, self._config.rewards, passages)
        return {
            "key": key,
            "section": shown,
            "chunk": chunk,
            "passages": passages,
            "siblings": siblings_of(database, one.name, trajectory.question_id),
            "notes": notes,
            "file": row["path"],
        }

    def _trained(self, database: sqlite3.Connection, one: StoredPass, key: str, notes: list[str]) -> TrainedRows:
        if one.rows is None:
            return {}
        question_of = dict(
            database.execute("select key, question from trajectory where store = ? and kept", (one.name,))
        )
        try:
            return read_trained(self._config, one.rows, {key}, question_of)[1]
        except UserError as error:
            notes.append(str(error))
            return {}


def _read_trajectory(row: Json) -> Trajectory:
    try:
        with Path(row["path"]).open("rb") as file:
            file.seek(row["start"])
            trajectory = Trajectory.model_validate_json(file.read(row["length"]))
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise UserError(f"{row['path']} at byte {row['start']}: not a Trajectory ({problem})") from error
    except OSError as error:
        raise Stale(f"{row['path']}: {error}") from error
    if trajectory.key != row["key"]:
        raise Stale(f"{row['path']} was changed")
    return trajectory


def _question(database: sqlite3.Connection, one: StoredPass, trajectory: Trajectory) -> Question:
    place = (one.split, trajectory.question_id)
    found = database.execute("select record from question where split = ? and id = ?", place).fetchone()
    return Question.model_validate_json(found[0]) if found else Question(id=trajectory.question_id, text=place[1])


def _choice(database: sqlite3.Connection, one: StoredPass, question: str) -> QuestionChoice | None:
    place = (one.name, question)
    found = database.execute("select record from chosen where store = ? and question = ?", place).fetchone()
    return QuestionChoice.model_validate_json(found[0]) if found else None


def _scores(database: sqlite3.Connection, one: StoredPass, key: str) -> dict[str, Score]:
    found = database.execute(
        "select name, path, start, length from score join scored using (store, name) where store = ? and key = ?",
        (one.name, key),
    )
    scores = {}
    for name, path, start, length in found:
        with Path(path).open("rb") as file:
            file.seek(start)
            scores[name] = Score.model_validate_json(file.read(length))
    return scores
