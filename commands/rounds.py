"""What belongs to the loop over rounds (`ratchet selftrain`) and not to one of its stages.

ratchet choose --config X --round 1       which evaluated adapter becomes the round's? By reward on dev
ratchet promote --config X --round 2      does round 2's adapter take its parent's place? Decided on dev
ratchet plan --config X                   memory and calls of the run, and beside what it took
ratchet trace --config X QUESTION_ID      one question through every round: sampled, scored, kept, trained
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ratchet.commands.arguments import (
    Phase,
    add_anyway_argument,
    add_phase_argument,
    add_round_argument,
    config_of,
    config_parser,
    positive_integer,
    recorded_stages,
)
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from ratchet.questions.manifest import open_run
from ratchet.rounds.records import StageId


def choose(words: Sequence[str], prog: str) -> None:
    """Choose the round's adapter among those that its training evaluated."""
    parser = config_parser(prog, "Run a round's evaluated adapters on dev, and choose the one with the best reward.")
    add_round_argument(parser, "the round whose adapter is chosen")
    add_phase_argument(parser)
    add_anyway_argument(parser)
    arguments = parser.parse_args(words)
    config = _config_of_rounds(arguments)
    from ratchet.questions.leakage import training_question_digests
    from ratchet.questions.load import load_split
    from ratchet.rounds import choice

    open_run(config, ("train", "dev"))
    number = arguments.round
    stages = _stages_of(arguments.phase, "choose.sample", "choose")
    with recorded_stages(config, *stages, number=number, anyway=arguments.anyway):
        if arguments.phase == "sample":
            return choice.sample_arms(config, number)
        questions = training_question_digests({"": load_split(config.questions.train, config.seed)})
        print(choice.choose(config, number, questions, sampled=arguments.phase == "score").reason)


def promote(words: Sequence[str], prog: str) -> None:
    """Decide whether a round's adapter takes its parent's place."""
    parser = config_parser(prog, "Evaluate base, parent and candidate on dev, and decide whether the candidate stands.")
    parser.add_argument(
        "--round", type=positive_integer, metavar="N", required=True, help="the round whose adapter is the candidate"
    )
    add_phase_argument(parser)
    add_anyway_argument(parser)
    arguments = parser.parse_args(words)
    config = _config_of_rounds(arguments)
    from ratchet.rounds import promotion

    number, adapter = arguments.round, open_run(config, ("dev",)).round(arguments.round).adapter
    stages = _stages_of(arguments.phase, "promote.sample", "promote")
    with recorded_stages(config, *stages, number=number, adapter=adapter, anyway=arguments.anyway):
        if arguments.phase == "sample":
            return promotion.sample_arms(config, number)
        decision = promotion.promote(config, number, sampled=arguments.phase == "score")
        print(decision.reason)
        if decision.warning:
            print(f"warning: {decision.warning}", file=sys.stderr)


def trace(words: Sequence[str], prog: str) -> None:
    """Print one question's way through every round."""
    parser = config_parser(prog, "Follow one question through every round: sampled, scored, kept, trained.")
    parser.add_argument("question", nargs="?", help="the question's id (default: list the ids)")
    arguments = parser.parse_args(words)
    config = _config_of_rounds(arguments)
    from ratchet.rounds.trace import print_questions, print_trace

    run = RunFolder(config.folder)
    if arguments.question is None:
        return print_questions(run)
    print_trace(run, arguments.question)


def _stages_of(phase: Phase, sampling: StageId, scoring: StageId) -> list[StageId]:
    """Which of the two stages of an evaluation a phase is."""
    return [*([sampling] if phase != "score" else []), *([scoring] if phase != "sample" else [])]


def _config_of_rounds(arguments: argparse.Namespace) -> Config:
    config = config_of(arguments)
    if config.members:
        raise UserError("members: a config with members runs one round, so there is nothing to choose or promote")
    return config
