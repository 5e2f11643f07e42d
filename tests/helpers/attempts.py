"""A run folder with several attempts at each question, some better than others, as selection would leave it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.core.config import Config
from ratchet.core.files import write_json
from ratchet.core.records import Question, Score, Trajectory
from ratchet.core.runfolder import RoundFolder
from ratchet.rewards.selection import select
from ratchet.sampling.store import Trajectories
from ratchet.training.rows import TokenRow, table_rows
from tests.helpers.stored import store
from tests.helpers.world import dialogue, make_run, prepared_rows, trajectory

ACTION: dict[str, Any] = {"preference": {"level": "action"}}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "weighted": {"objective": "weighted"},
    "dpo": {"objective": "dpo"},
    "dpo of actions": {"objective": "dpo", **ACTION},
    "kto": {"objective": "kto"},
    "kto of actions": {"objective": "kto", **ACTION},
}
every_objective = pytest.mark.parametrize("settings", OBJECTIVES.values(), ids=OBJECTIVES.keys())
GOOD, BAD = '{"agent": "searcher"}', '{"agent": "finisher"}'
REWARDS = (1.0, 0.0, 0.25, 0.75)
"""By sample."""


def attempt(question: int, sample: int) -> Trajectory:
    """The good ones (even rewards above a half) ask the searcher after the same prompt; the others end at once, and
    have one conversation less."""
    is_good = REWARDS[sample] > 0.5
    last = f"Ada {'Torrin' * (sample + question % 3)}"
    turns = [(f"Question: Who is {question}?", GOOD if is_good else BAD, "ok"), ("Next?", last, "free")]
    searcher = [dialogue("searcher", [(f"Who is {question}?", '{"search_query": "harbour"}', "ok")])] if is_good else []
    answerer = dialogue("answerer", [("Answer.", "Ada Torrin", "free")], trainable=False)
    parts = [dialogue("coordinator", turns), *searcher, answerer]
    return trajectory(f"t{question}-{sample}", f"q{question}", parts, sample=sample)


def make_attempts(
    folder: Path, questions: int = 12, rewards: tuple[float, ...] = REWARDS, **training: Any
) -> tuple[Path, Config, RoundFolder]:
    """As `make_run`, with an attempt for each of `rewards` at every question."""
    path, config, rounds = make_run(folder, questions, **training)
    made = [attempt(n, sample) for n in range(questions) for sample in range(len(rewards))]
    asked = [Question(id=f"q{n}", text=f"Who is {n}?", answers=("Ada",)) for n in range(questions)]
    (rounds.trajectories / "a.jsonl").unlink()
    store(rounds.trajectories, made, asked)
    scores = {(t.key, "f1"): Score(trajectory=t.key, name="f1", value=rewards[t.sample]) for t in made}
    selection = select(asked, Trajectories.of(made), scores, {"f1": 1.0}, config.rewards.select)
    write_json(rounds.selection, selection.model_dump(mode="json"))
    return path, config, rounds


def start_attempts(folder: Path, model: Path, **training: Any) -> tuple[Path, Config, RoundFolder]:
    """`make_attempts` in a new folder with this model, in steps of eight rows."""
    folder.mkdir(exist_ok=True)
    (folder / "model").symlink_to(model)
    return make_attempts(folder, **{"batch_size": 8, **training})


def rows_of(config: Config, folder: RoundFolder) -> list[TokenRow]:
    """The round's rows, built or read."""
    return list(table_rows(prepared_rows(config, folder)[0].table))


def label_logps(model: Any, row: dict[str, Any]) -> list[float]:
    """The log-probabilities of the learnt tokens of a row, which is computed alone."""
    with torch.no_grad():
        logps = model(torch.tensor([row["ids"]])).logits[0].log_softmax(-1)
    return [float(logps[at - 1, row["ids"][at]]) for at, learnt in enumerate(row["loss_mask"]) if learnt]
