"""Look at a run, from its records alone: ratchet report --config X [--round N] writes report.html in the run folder.

With --follow the page is served instead, and made again while the run goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path

from ratchet.commands.config import IN_LOOP, config_words
from ratchet.commands.recording import recorded_stages, stages_to_do_again
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import write_atomic
from ratchet.core.runfolder import RunFolder
from ratchet.questions.manifest import open_run
from ratchet.report.follow import LiveRun, open_server
from ratchet.report.gather import gather
from ratchet.report.page import render
from ratchet.report.rounds import numbers_on_disk
from ratchet.rounds.stages import ExperimentRun


def report(config: Config, options: argparse.Namespace) -> None:
    """Write or serve the page of a round."""
    number = round_of(config.folder, options.round)
    if options.follow:
        return follow(config, options)
    write_report(config, number, options.questions)


def write_report(config: Config, number: int, questions: int) -> None:
    """Write report.html of a round. `questions`: the limit of those with trajectories on the page, per section."""
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
    live = LiveRun(ExperimentRun(config, config_words(arguments)), arguments.round, arguments.questions)
    with open_server(live, arguments.port) as server, contextlib.suppress(KeyboardInterrupt):
        line = f"{config.folder} is at http://127.0.0.1:{server.server_port}; Ctrl-C ends"
        print(line, file=sys.stderr, flush=True)
        server.serve_forever()


def round_of(folder: Path, asked: int | None) -> int:
    """The round that is asked for, or else the last one with any records. UserError where there is none."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such run folder; run `ratchet sample` first")
    numbers = numbers_on_disk(RunFolder(folder))
    if asked and asked not in numbers:
        known = ", ".join(map(str, numbers)) or "none"
        raise UserError(f"--round {asked}: {folder} has no records of this round (rounds with records: {known})")
    return asked or max(numbers, default=1)
