"""Look at a run, from its records alone: ratchet report --config X [--round N] writes report.html in the run folder.

With --follow the page is served instead, and made again while the run goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ratchet.commands.arguments import (
    IN_LOOP,
    PORTS,
    add_round_argument,
    config_of,
    config_parser,
    config_words,
    positive_integer,
    recorded_stages,
)
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import write_atomic
from ratchet.core.runfolder import RunFolder
from ratchet.questions.manifest import open_run

MAX_QUESTIONS = 500
"""The limit of questions whose trajectories are on the page, per section."""
ABOUT = "Write a round's page: numbers, plots, selection and trajectories."


def main(words: Sequence[str] | None = None, prog: str = "ratchet report") -> None:
    """Write or serve the page of a round."""
    parser = config_parser(prog, ABOUT)
    add_round_argument(parser, "the number of the round (default: the last that has any records)", None)
    parser.add_argument(
        "--questions",
        type=positive_integer,
        default=MAX_QUESTIONS,
        help=f"the limit of questions with trajectories on the page, per section (default {MAX_QUESTIONS})",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="serve the page at 127.0.0.1 until Ctrl-C, with what the run is doing; it renews itself, and nothing is "
        "written (from another machine: `ssh -L`)",
    )
    parser.add_argument("--port", type=int, default=PORTS["report"], help="of --follow (default: %(default)s; 0: any)")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    number = round_of(config.folder, arguments.round)
    if arguments.follow:
        return follow(config, arguments)
    write_report(config, number, arguments.questions)


def write_report(config: Config, number: int, questions: int) -> None:
    """Write report.html of a round. `questions`: the limit of those with trajectories on the page, per section."""
    from ratchet.commands.recording import stages_to_do_again
    from ratchet.report.gather import gather  # late: --help loads neither the records nor matplotlib
    from ratchet.report.page import render

    run = open_run(config, ())
    again = [] if os.environ.get(IN_LOOP) else stages_to_do_again(config)
    for line in again:
        print(f"warning: {line}; the page shows what came of it", file=sys.stderr)
    with recorded_stages(config, "report", number=number):
        gathered = gather(config, run.round(number), questions)
        page = render(config, replace(gathered, missing=(*gathered.missing, *(f"{line}." for line in again))))
        write_atomic(run.report, page.encode("utf-8", "replace"))
    print(f"{run.report}  {len(page) / 1e6:.1f} MB")


def follow(config: Config, arguments: argparse.Namespace) -> None:
    """Serve the page of a run until Ctrl-C or SIGTERM."""
    from ratchet.report.follow import LiveRun, open_server
    from ratchet.rounds.stage import ExperimentRun

    live = LiveRun(ExperimentRun(config, config_words(arguments)), arguments.round, arguments.questions)
    with open_server(live, arguments.port) as server, contextlib.suppress(KeyboardInterrupt):
        line = f"{config.folder} is at http://127.0.0.1:{server.server_port}; Ctrl-C ends"
        print(line, file=sys.stderr, flush=True)
        server.serve_forever()


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
