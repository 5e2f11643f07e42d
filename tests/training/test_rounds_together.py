"""A round that learns from all rounds so far (rounds.learn_from)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from commands.rows import print_summary
from commands.train import train_round
from ratchet.config import Config, load_config
from ratchet.files import read_log, write_json
from ratchet.runfolder import RoundFolder, RunFolder
from tests.helpers.attempts import every_objective, rows_of, start_attempts
from tests.helpers.world import prepared_rows
from training.rows import split_rows


def second_round(path: Path, first: RoundFolder, *settings: str) -> tuple[Config, RoundFolder]:
    """A second round on the same questions, whose trajectories have other keys."""
    config = load_config(path, ["rounds.count=2", "rounds.learn_from=all", *settings])
    second = RunFolder(config.folder).round(2)
    shutil.copytree(first.path, second.path)
    for file in [*second.trajectories.iterdir(), second.selection]:
        file.write_text(re.sub(r'"t(\d+-\d)"', r'"u\1"', file.read_text()))
    return config, second


@every_objective
def test_the_rows_are_those_of_all_rounds(model: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    path, config, first = start_attempts(tmp_path / "run", model, **settings)
    alone = rows_of(config, first)
    both, second = second_round(path, first)
    rows = rows_of(both, second)
    assert len(rows) == 2 * len(alone) and len({row.trajectory for row in rows}) == 2 * len(
        {r.trajectory for r in alone}
    )
    assert rows_of(both, first) == alone, "the first round has none before it"
    last = load_config(path, ["rounds.count=2"])
    assert len(rows_of(last, second)) == len(alone)
    if names := {row.example for row in rows if row.example}:
        assert len(names) == 2 * len({row.example for row in alone}), "an example is of one round"
    built, questions = prepared_rows(both, second)
    train, dev = split_rows(built.table, questions, 0.2, both.seed)
    sides = [{questions[key] for key in part["trajectory"].to_pylist()} for part in (train, dev)]
    assert sides[1] and not sides[0] & sides[1], "a question is held out in every round, or in none"


@pytest.mark.slow
def test_it_trains_on_them_and_the_summary_finds_them(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _, first = start_attempts(tmp_path / "run", model, max_steps=2)
    config, second = second_round(path, first, "evaluation.controls=[random]")
    print_summary(config, 2)
    assert "equal the sampled ids, id for id" in capsys.readouterr().out
    train_round(config, 2)
    assert read_log(second.training / "log.jsonl")[-1]["step"] == 2
    train_round(config, 2, control="random")
    chosen = [one.control("random").read_selection() for one in (first, second)]
    assert all(selection is not None and selection.kept for selection in chosen)
    keys = {row.trajectory for row in rows_of(config, second.control("random"))}
    assert {key[0] for key in keys} == {"t", "u"}, "the control learns from random trajectories of both rounds"


def test_a_round_that_kept_nothing_is_not_learnt_from(model: Path, tmp_path: Path) -> None:
    path, _, first = start_attempts(tmp_path / "run", model)
    both, second = second_round(path, first)
    selection = first.read_selection()
    assert selection is not None
    empty = tuple(choice.model_copy(update={"kept": ()}) for choice in selection.questions)
    write_json(first.selection, selection.model_copy(update={"questions": empty}).model_dump(mode="json"))
    assert {row.trajectory[0] for row in rows_of(both, second)} == {"u"}
