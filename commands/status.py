"""ratchet status --config configs/X.yaml: what of a run is done, what is left and where it resumes; only reads.

It is asked often, and answers in a moment: it imports nothing that samples, scores, trains or searches.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ratchet.commands.arguments import config_of, config_parser, config_words
from ratchet.core.errors import UserError
from ratchet.rounds.stage import ExperimentRun
from ratchet.rounds.status import print_status


def status(words: Sequence[str], prog: str) -> None:
    """Print what is done and left of a run."""
    parser = run_parser(prog, "Print what is done, what is left and where it resumes; nothing is changed.")
    print_status(run_of(parser.parse_args(words)))


def run_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """A parser with --config, --set and --accelerate, for `run_of`."""
    parser = config_parser(prog, description)
    parser.add_argument("--accelerate", metavar="FILE", help="the config file that `accelerate launch` trains with")
    return parser


def run_of(options: argparse.Namespace) -> ExperimentRun:
    """The run of the config that the command line names. Raises UserError."""
    if options.accelerate and not Path(options.accelerate).is_file():
        raise UserError(f"--accelerate {options.accelerate}: there is no such file")
    return ExperimentRun(config_of(options), config_words(options), options.accelerate)
