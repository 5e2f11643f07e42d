"""The loop over rounds beside its stages: what of a run is done, and which adapter is chosen and promoted.

`ratchet status` is asked often, and answers in a moment: at the top nothing is imported that samples, scores, trains or
searches.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ratchet.commands.config import config_words
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from ratchet.questions.manifest import open_run
from ratchet.rounds.records import StageId
from ratchet.rounds.stages import ExperimentRun
from ratchet.rounds.status import print_status


def status(config: Config, options: argparse.Namespace) -> None:
    """Print what is done and left of a run."""
    print_status(run_of(config, options))


def run_of(config: Config, options: argparse.Namespace) -> ExperimentRun:
    """Return the run of a config, with the command line's --accelerate. Raises UserError."""
    if options.accelerate and not Path(options.accelerate).is_file():
        raise UserError(f"--accelerate {options.accelerate}: there is no such file")
    return ExperimentRun(config, config_words(options), options.accelerate)


def trace(config: Config, options: argparse.Namespace) -> None:
    """Print one question's way through every round."""
    _refuse_members(config)
    from ratchet.rounds.trace import print_questions, print_trace

    run = RunFolder(config.folder)
    if options.question is None:
        return print_questions(run)
    print_trace(run, options.question)


def choose(config: Config, options: argparse.Namespace) -> None:
    """Choose the round's adapter among those that its training evaluated."""
    _refuse_members(config)
    from ratchet.commands.recording import recorded_stages
    from ratchet.questions.leakage import training_question_digests
    from ratchet.questions.load import load_split
    from ratchet.rounds import adapters

    open_run(config, ("train", "dev"))
    number = options.round
    stages = _stages_of(options.phase, "choose.sample", "choose")
    with recorded_stages(config, *stages, number=number, anyway=options.anyway):
        if options.phase == "sample":
            return adapters.sample_candidates(config, number)
        questions = training_question_digests({"": load_split(config.questions.train, config.seed)})
        print(adapters.choose_adapter(config, number, questions, sampled=options.phase == "score").reason)


def promote(config: Config, options: argparse.Namespace) -> None:
    """Decide whether a round's adapter takes its parent's place."""
    _refuse_members(config)
    from ratchet.commands.recording import recorded_stages
    from ratchet.rounds import adapters

    number, adapter = options.round, open_run(config, ("dev",)).round(options.round).adapter
    stages = _stages_of(options.phase, "promote.sample", "promote")
    with recorded_stages(config, *stages, number=number, adapter=adapter, anyway=options.anyway):
        if options.phase == "sample":
            return adapters.sample_promotion(config, number)
        decision = adapters.promote(config, number, sampled=options.phase == "score")
        print(decision.reason)
        if decision.warning:
            print(f"warning: {decision.warning}", file=sys.stderr)


def _stages_of(phase: str, sampling: StageId, scoring: StageId) -> list[StageId]:
    return [*([sampling] if phase != "score" else []), *([scoring] if phase != "sample" else [])]


def _refuse_members(config: Config) -> None:
    if config.members:
        raise UserError("members: a config with members runs one round, so there is nothing to choose or promote")
