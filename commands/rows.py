"""`ratchet show`: look at what a round trains on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from ratchet.commands.recording import outdated_inputs
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.training.kept import KeptTrajectories, learnt_rounds, read_kept
from ratchet.training.rows import RowsFile, check_rows, prepare_rows, table_rows
from ratchet.training.show import render_row, summary


def show(config: Config, options: argparse.Namespace) -> None:
    """Print one token row, or build the rows, check them and print the totals."""
    outdated_inputs(config, "train", number=options.round, anyway=options.anyway)
    if options.row is None:
        print_summary(config, options.round)
    else:
        show_row(config, options.round, options.row)


def show_row(config: Config, number: int, row: int) -> None:
    """Print row number `row`."""
    rows, kept = _prepare(config, number)
    if not 0 <= row < len(rows.table):
        raise UserError(f"--row {row}: the rows are numbered 0 to {len(rows.table) - 1}")
    shown = next(table_rows(rows.table.slice(row, 1)))
    [trajectory] = _read(kept, [shown.trajectory])
    model = config.models[config.training.model]
    tokenizer = load_tokenizer(model.path, model.revision)
    decode = lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))  # noqa: E731
    print(render_row(shown, trajectory.conversations[shown.conversation], decode, colour=sys.stdout.isatty()))


def print_summary(config: Config, number: int) -> None:
    """Build the rows, check them against the trajectories, and print the totals."""
    rows, kept = _prepare(config, number)
    print(summary(rows.table, rows.skipped))
    trained = rows.table["trajectory"].unique().to_pylist()
    stored = {trajectory.key: trajectory for trajectory in _read(kept, trained)}
    training = config.training
    learnt = training.thoughts == "trained", training.loss_on == "sequence"
    actions = check_rows(table_rows(rows.table), stored, *learnt)
    print(f"checked: the labels of {actions} actions equal the sampled ids, id for id")


def _prepare(config: Config, number: int) -> tuple[RowsFile, list[KeptTrajectories]]:
    folder = RunFolder(config.folder).round(number)
    rounds = learnt_rounds(config, folder)
    return prepare_rows(rounds, folder.rows, config.training)[0], read_kept(rounds)


def _read(kept: Sequence[KeptTrajectories], keys: Sequence[str]) -> Iterator[Trajectory]:
    return (trajectory for part in kept for trajectory in part.store.read(keys))
