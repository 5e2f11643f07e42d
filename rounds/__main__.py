"""What belongs to the loop over rounds (`python selftrain.py`) and not to one of its stages.

python -m rounds promote --config X --round 2     does round 2's adapter take its parent's place? Decided on dev
python -m rounds trace --config X QUESTION_ID     one question through every round: sampled, scored, kept, trained
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ratchet.command import add_phase_argument, config_of, config_parser, run_command
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.runfolder import open_run
from ratchet.subcommands import Subcommand, run_subcommand


def main(words: Sequence[str] | None = None, prog: str = "python -m rounds") -> None:
    run_subcommand(SUBCOMMANDS, words, prog, "What belongs to the loop over rounds and not to one of its stages.")


def promote(words: Sequence[str], prog: str) -> None:
    parser = config_parser(prog, "Evaluate base, parent and candidate on dev, and decide whether the candidate stands.")
    parser.add_argument("--round", type=int, required=True, help="the round whose adapter is the candidate")
    add_phase_argument(parser)
    arguments = parser.parse_args(words)
    config = _config_of_rounds(arguments)
    from rounds import promotion

    run = open_run(config)
    if arguments.phase == "sample":
        return promotion.sample_arms(config, run, arguments.round)
    print(promotion.promote(config, run, arguments.round, sampled=arguments.phase == "score").reason)


def trace(words: Sequence[str], prog: str) -> None:
    parser = config_parser(prog, "Follow one question through every round: sampled, scored, kept, trained.")
    parser.add_argument("question", help="the question's id")
    arguments = parser.parse_args(words)
    config = _config_of_rounds(arguments)
    from rounds.trace import print_trace

    print_trace(config, arguments.question)


def _config_of_rounds(arguments: argparse.Namespace) -> Config:
    config = config_of(arguments)
    if config.members:
        raise UserError("members: this config has some, which run one round; there is nothing to promote")
    return config


SUBCOMMANDS = {
    "promote": Subcommand("evaluate base, parent and candidate on dev, and decide", promote),
    "trace": Subcommand("one question through every round", trace),
}


if __name__ == "__main__":
    run_command(main)
