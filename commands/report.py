"""Look at a run, from its records alone.

ratchet report --config X [--round N]          write report.html in the run folder
ratchet watch --config X                       serve a page over the run folder while it is written
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ratchet.commands.arguments import (
    IN_LOOP,
    PORTS,
    add_round_argument,
    add_server_arguments,
    config_of,
    config_parser,
    config_words,
    positive_integer,
    recorded_stages,
)
from ratchet.commands.subcommands import Subcommand, run_subcommand
from ratchet.core.errors import UserError
from ratchet.core.extras import need_extra
from ratchet.core.files import write_atomic
from ratchet.core.runfolder import RunFolder
from ratchet.questions.manifest import open_run

MAX_QUESTIONS = 500
"""The limit of questions whose trajectories are on the page, per section."""
ABOUT = "Write a round's page: numbers, plots, selection and trajectories."


def main(words: Sequence[str] | None = None, prog: str = "ratchet report") -> None:
    """Run `ratchet report`."""
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT, otherwise=write_report)


def write_report(words: Sequence[str], prog: str) -> None:
    """Write the page of a round."""
    parser = config_parser(prog, ABOUT)
    add_page_arguments(parser)
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    number = round_of(config.folder, arguments.round)
    from ratchet.commands.recording import stages_to_do_again
    from ratchet.report.gather import gather  # late: --help loads neither the records nor matplotlib
    from ratchet.report.page import render

    run = open_run(config, ())
    again = [] if os.environ.get(IN_LOOP) else stages_to_do_again(config)
    for line in again:
        print(f"warning: {line}; the page shows what came of it", file=sys.stderr)
    with recorded_stages(config, "report", number=number):
        gathered = gather(config, run.round(number), arguments.questions)
        page = render(config, replace(gathered, missing=(*gathered.missing, *(f"{line}." for line in again))))
        write_atomic(run.report, page.encode("utf-8", "replace"))
    print(f"{run.report}  {len(page) / 1e6:.1f} MB")


def watch(words: Sequence[str] | None = None, prog: str = "ratchet watch") -> None:
    """Serve the page of a run until Ctrl-C."""
    parser = config_parser(
        prog,
        "Serve the page of a run: what it is doing, its numbers and its trajectories. The folder is only read. The "
        "page is at 127.0.0.1: from another machine, use `ssh -L`.",
    )
    add_page_arguments(parser)
    add_server_arguments(parser, PORTS["watch"], others=False)
    arguments = parser.parse_args(words)
    need_extra("server", "ratchet watch")
    config = config_of(arguments)
    round_of(config.folder, arguments.round)
    from ratchet.core.http.server import address_of, listen, serve_until_stopped
    from ratchet.report.live import LiveRun, create_app
    from ratchet.rounds.stage import ExperimentRun

    experiment = ExperimentRun(config, config_words(arguments))
    live = LiveRun(experiment, arguments.round, arguments.questions)
    with listen("127.0.0.1", arguments.port) as listener, live:
        line = f"{config.folder} is at {address_of(listener)}; Ctrl-C ends"
        asyncio.run(serve_until_stopped(create_app(live), listener, drain_seconds=2, line=line))


def add_page_arguments(parser: argparse.ArgumentParser) -> None:
    """For the report, and for the page over a run that goes on."""
    add_round_argument(parser, "the number of the round (default: the last that has any records)", None)
    parser.add_argument(
        "--questions",
        type=positive_integer,
        default=MAX_QUESTIONS,
        help=f"the limit of questions with trajectories on the page, per section (default {MAX_QUESTIONS})",
    )


def round_of(folder: Path, asked: int | None) -> int:
    """The round that is asked for, or else the last one with any records. UserError where there is none."""
    from ratchet.report.rounds import numbers_on_disk

    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such run folder; run `ratchet sample` first")
    numbers = numbers_on_disk(RunFolder(folder))
    if asked and asked not in numbers:
        known = ", ".join(map(str, numbers)) or "none"
        raise UserError(f"--round {asked}: {folder} has no records of this round (rounds with records: {known})")
    return asked or max(numbers, default=1)


SUBCOMMANDS = {
    "watch": Subcommand("serve a page over a run folder while it is written, or later", watch),
}
