"""Look at what a round trains on: `python -m training show` prints a row, `python -m training rows` sums them up.

    python -m training rows --config configs/demo.yaml
    python -m training show --config configs/demo.yaml --role coordinator

Training itself is `accelerate launch train.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from commands.arguments import add_round_argument, config_of, config_parser
from commands.subcommands import Subcommand, run_subcommand
from inference.tokenizer import load_tokenizer
from ratchet.config import Config
from ratchet.errors import UserError, did_you_mean
from ratchet.runfolder import RunFolder
from sampling.store import TrajectoryStore
from training.kept import read_kept
from training.rows import check_rows, prepare_rows, table_rows


def main(words: Sequence[str] | None = None, prog: str = "python -m training") -> None:
    """Run `python -m training`."""
    run_subcommand(
        SUBCOMMANDS, words, prog, "Look at what a round trains on; training is `accelerate launch train.py`."
    )


def show(words: Sequence[str], prog: str) -> None:
    """Print one token row."""
    parser = _parser(prog, "Print one token row, its learnt tokens marked.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--row", type=int, default=0, help="number of the row, counted from 0")
    which.add_argument("--role", help="the first row of this role")
    arguments = parser.parse_args(words)
    show_row(config_of(arguments), arguments.round, arguments.row, arguments.role)


def rows(words: Sequence[str], prog: str) -> None:
    """Build the rows, check them and print the totals."""
    parser = _parser(prog, "Build the token rows, check them against the trajectories and sum them up.")
    arguments = parser.parse_args(words)
    print_summary(config_of(arguments), arguments.round)


def _parser(prog: str, description: str) -> argparse.ArgumentParser:
    parser = config_parser(prog, description)
    add_round_argument(parser, "the round")
    return parser


def show_row(config: Config, number: int, row: int, role: str | None) -> None:
    """Print row number `row`, or the first row of `role`."""
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
    stores = [TrajectoryStore(one.folder.trajectories) for one in read_kept(config, folder)]
    [trajectory] = (one for store in stores for one in store.read([shown.trajectory]))
    conversation = trajectory.conversations[shown.conversation]
    model = config.models[config.training.model]
    tokenizer = load_tokenizer(model.path, model.revision)
    decode = lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))  # noqa: E731
    from training.show import render_row  # here, since it loads torch

    print(render_row(shown, conversation, decode, colour=sys.stdout.isatty()))


def print_summary(config: Config, number: int) -> None:
    """Build the rows, check them against the trajectories, and print the totals."""
    folder = RunFolder(config.folder).round(number)
    built, _ = prepare_rows(config, folder)
    from training.show import summary  # here, since it loads torch

    print(summary(built.table, built.skipped))
    trained = built.table["trajectory"].unique().to_pylist()
    stores = [TrajectoryStore(one.folder.trajectories) for one in read_kept(config, folder)]
    stored = {trajectory.key: trajectory for store in stores for trajectory in store.read(trained)}
    for one in read_kept(config, folder):
        if weights := one.role_weights(config.training):
            where = f" ({one.prefix or one.example_prefix or 'this round'})"
            print(f"weights of roles{where}: " + ", ".join(f"{role} {weight:.2f}" for role, weight in weights.items()))
    actions = check_rows(table_rows(built.table), stored)
    print(f"checked: the labels of {actions} actions equal the sampled ids, id for id")


SUBCOMMANDS = {
    "show": Subcommand("print one token row, its learnt tokens marked", show),
    "rows": Subcommand("build the token rows, check them against the trajectories and sum them up", rows),
}
