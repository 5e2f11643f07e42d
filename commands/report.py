"""Look at a run, from its records alone.

python -m report --config X [--round N]        write report.html in the run folder
python -m report watch --config X              serve a page over the run folder while it is written
python -m report logs --config X --to KIND     trajectories for other tools: Inspect, OpenTelemetry, Parquet
"""

from __future__ import annotations

from collections.abc import Sequence

from commands.arguments import config_of, config_parser, positive_integer, recorded_stages
from commands.subcommands import Subcommand, run_subcommand
from questions.manifest import open_run
from ratchet.errors import UserError
from ratchet.files import write_atomic

ABOUT = "Write a round's page: numbers, plots, selection and trajectories."


def main(words: Sequence[str] | None = None, prog: str = "python -m report") -> None:
    """Run `python -m report`."""
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT, otherwise=write_report)


def write_report(words: Sequence[str], prog: str) -> None:
    """Write the page of a round."""
    from report.gather import MAX_QUESTIONS, gather  # late: watch starts without it
    from report.rounds import numbers_on_disk

    parser = config_parser(prog, ABOUT)
    parser.add_argument(
        "--round",
        type=positive_integer,
        metavar="N",
        help="the number of the round (default: the last that has any records)",
    )
    parser.add_argument(
        "--questions",
        type=positive_integer,
        default=MAX_QUESTIONS,
        help=f"the limit of questions with trajectories on the page, per section (default {MAX_QUESTIONS})",
    )
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    if not config.folder.exists():
        raise UserError(f"{config.folder}: there is no such run folder; run `python -m sampling` first")
    run = open_run(config)
    numbers = numbers_on_disk(run)
    number = arguments.round or max(numbers, default=1)
    if arguments.round and number not in numbers:
        known = ", ".join(map(str, numbers)) or "none"
        raise UserError(
            f"--round {number}: {config.folder} has no records of this round (rounds with records: {known})"
        )
    from report.page import render  # here, since it loads matplotlib

    with recorded_stages(config, "report", number=number):
        page = render(config, gather(config, run.round(number), number, arguments.questions))
        write_atomic(run.report, page.encode("utf-8", "replace"))
    print(f"{run.report}  {len(page) / 1e6:.1f} MB")


SUBCOMMANDS = {
    "watch": Subcommand("serve a page over a run folder while it is written, or later", "commands.watch:main"),
    "logs": Subcommand("write trajectories as Inspect logs, OpenTelemetry spans or Parquet", "commands.logs:main"),
}
