"""Look at what a round trains on: `python -m training show` prints a row, `python -m training rows` sums them up.

    python -m training rows --config configs/demo.yaml
    python -m training show --config configs/demo.yaml --role coordinator

Training itself is `accelerate launch train.py`.
"""

from __future__ import annotations

import argparse
import sys

from inference.chat import load_tokenizer
from ratchet.command import add_config_arguments, config_of, run_command
from ratchet.config import Config
from ratchet.errors import UserError, did_you_mean
from ratchet.runfolder import RunFolder
from sampling.store import read_trajectories
from training.prepare import prepare_rows
from training.rows import check_rows, table_rows
from training.show import render_row, summary


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description="Look at a round's token rows.")
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="print one row, its learnt tokens marked")
    which = show.add_mutually_exclusive_group()
    which.add_argument("--row", type=int, default=0, help="number of the row, counted from 0")
    which.add_argument("--role", help="the first row of this role")
    sums = commands.add_parser("rows", help="build the rows, check them against the trajectories and sum them up")
    for command in (show, sums):
        add_config_arguments(command)
        command.add_argument("--round", type=int, default=1, help="the round (default 1)")
    arguments = parser.parse_args()
    config = config_of(arguments)
    if arguments.command == "show":
        show_row(config, arguments.round, arguments.row, arguments.role)
    else:
        sum_up(config, arguments.round)


def show_row(config: Config, number: int, row: int, role: str | None) -> None:
    folder = RunFolder(config.folder).round(number)
    table = prepare_rows(config, folder)[0].table
    if role is not None:
        roles = table["role"].to_pylist()
        if role not in roles:
            raise UserError(f"--role {role}: no row has this role{did_you_mean(role, set(roles))}")
        row = roles.index(role)
    if not 0 <= row < len(table):
        raise UserError(f"--row {row}: the rows are numbered 0 to {len(table) - 1}")
    shown = next(table_rows(table.slice(row, 1)))
    stored = {
        t.key: t for t in read_trajectories(folder.trajectories) if t.key == shown.trajectory and t.status != "failed"
    }
    conversation = stored[shown.trajectory].conversations[shown.conversation]
    model = config.models[config.training.model]
    tokenizer = load_tokenizer(model.path, model.revision)
    decode = lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))  # noqa: E731
    print(render_row(shown, conversation, decode, colour=sys.stdout.isatty()))


def sum_up(config: Config, number: int) -> None:
    folder = RunFolder(config.folder).round(number)
    rows, _ = prepare_rows(config, folder)
    print(summary(rows.table, rows.left_out))
    trained = set(rows.table["trajectory"].to_pylist())
    stored = {t.key: t for t in read_trajectories(folder.trajectories) if t.key in trained and t.status != "failed"}
    actions = check_rows(table_rows(rows.table), stored)
    print(f"checked: the labels of {actions} actions equal the sampled ids, id for id")


if __name__ == "__main__":
    run_command(main)
