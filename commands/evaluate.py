"""ratchet evaluate --config X: compare base, adapter and baselines, and print tables of stored results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.commands.arguments import (
    add_anyway_argument,
    add_best_round_argument,
    add_phase_argument,
    config_of,
    config_parser,
    recorded_stages,
    round_or_best,
)
from ratchet.commands.extras import check_scoring_extras, check_system_extras
from ratchet.commands.subcommands import Subcommand, run_subcommand
from ratchet.core.config import Config, EvaluationConfig
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RoundFolder
from ratchet.evaluation.results import BASE, TRAINED, Results
from ratchet.questions.manifest import open_run

if TYPE_CHECKING:
    from ratchet.rounds.records import StageId

ABOUT = """Run the base model, the round's adapter and the config's baselines on held-out questions and on the config's
benchmarks, and print base against trained and all methods side by side."""


def main(words: Sequence[str] | None = None, prog: str = "ratchet evaluate") -> None:
    """Run a command of `ratchet evaluate`; `words` default to the process's arguments."""
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT, otherwise=_run)


def _run(words: Sequence[str], prog: str) -> None:
    """Run the arms and score them, or one of the two."""
    parser = stored_parser(prog, ABOUT)
    add_phase_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--adapter", type=Path, help="another adapter folder than the round's")
    which.add_argument("--base-only", action="store_true", help="measure the base model and the baselines alone")
    add_anyway_argument(parser)
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    check_system_extras(config)
    check_scoring_extras(config)
    folder, splits = open_round(config, arguments)
    from ratchet.evaluation.round_arms import evaluate, run_arms
    from ratchet.inference.adapters import is_adapter

    adapter = None if arguments.base_only else arguments.adapter or folder.adapter
    if adapter is not None and not is_adapter(adapter):
        raise UserError(
            f"{adapter}: there is no adapter here; train an adapter first (ratchet train; with "
            "training.choose_by=reward, then `ratchet choose`), or measure the base model alone with "
            "--base-only"
        )
    sampling: tuple[StageId, ...] = ("evaluate.sample", "test.sample") if arguments.phase != "score" else ()
    scoring: tuple[StageId, ...] = ("evaluate", "test") if arguments.phase != "sample" else ()
    # An evaluation of one split of several is no complete stage.
    stages = (*sampling, *scoring) if splits == config.evaluation.question_sets else ()
    with recorded_stages(config, *stages, number=folder.number, adapter=adapter, anyway=arguments.anyway):
        if arguments.phase == "sample":
            arms = run_arms(config, folder, splits, adapter)
            for split in splits:
                counts = ", ".join(f"{arm.name} {len(arm.store.keys())}" for arm in arms if arm.asked.name == split)
                print(f"{split}: trajectories in {config.folder / 'arms' / split}: {counts}")
            return
        suite = evaluate(config, folder, splits, adapter, sampled=arguments.phase == "score")
    _show(suite, folder, config.evaluation)


def _stored(action: str, words: Sequence[str], prog: str) -> None:
    """Print a table of what earlier runs stored."""
    parser = stored_parser(prog, f"{STORED[action].capitalize()}. It reads stored results and needs no model.")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    folder, splits = open_round(config, arguments)
    from ratchet.evaluation.round_arms import build_results
    from ratchet.evaluation.tables.savings import print_savings
    from ratchet.evaluation.tables.verdicts import print_verdicts

    suite = build_results(config, folder, splits)
    if action == "table":
        return _show(suite, folder, config.evaluation)
    if action == "verdicts":
        return print_verdicts(suite)
    print_savings(config, suite)


def _leakage(words: Sequence[str], prog: str) -> None:
    """Print what the config's splits share."""
    arguments = config_parser(
        prog, "List the questions and gold documents that training and evaluation share."
    ).parse_args(words)
    from ratchet.evaluation.tables.leakage import print_leaks
    from ratchet.questions.leakage import leakage_between_splits

    config = config_of(arguments)
    print_leaks(leakage_between_splits(config))


def stored_parser(prog: str, description: str, split: str | None = None) -> argparse.ArgumentParser:
    """For every command on a round's evaluation: --config, --set, --round and --split, whose default is `split`."""
    parser = config_parser(prog, description)
    _add_stored_arguments(parser, split)
    return parser


def _add_stored_arguments(parser: argparse.ArgumentParser, split: str | None = None) -> None:
    add_best_round_argument(parser, "the round whose adapter is evaluated")
    parser.add_argument(
        "--split",
        default=split,
        help=f"train, dev, test, or one of evaluation.benchmarks (default: {split or 'test and all of those'})",
    )


def open_round(config: Config, arguments: argparse.Namespace) -> tuple[RoundFolder, list[str]]:
    """The folder of the round, and the question sets that are asked for."""
    if config.members:
        raise UserError("the config has `members`, which `ratchet selftrain` evaluates")
    splits = [arguments.split] if arguments.split else config.evaluation.question_sets
    return round_or_best(open_run(config, splits), arguments.round), splits


STORED = {
    "table": "print the tables of a stored evaluation",
    "verdicts": "confusion tables of questions with labels, and scores by label",
    "savings": "how many tool calls an evidence memory saves, in percent",
}
SUBCOMMANDS = {
    "run": Subcommand("sample, score and compare, as without a command", _run),
    "sweep": Subcommand("evaluate checkpoints x systems x question sets", "ratchet.commands.sweep:sweep"),
    **{action: Subcommand(about, partial(_stored, action)) for action, about in STORED.items()},
    "thresholds": Subcommand(
        "thresholds for the scores by which a debate may end, from dev", "ratchet.commands.tables:thresholds"
    ),
    "members": Subcommand(
        "one adapter's results on the tasks of all the config's members", "ratchet.commands.tables:members"
    ),
    "leakage": Subcommand("list the questions that training and evaluation share", _leakage),
}


def _show(suite: list[Results], folder: RoundFolder, evaluation: EvaluationConfig) -> None:
    """Print the tables, and put the stored results on every question set into the card of the round's adapter."""
    from ratchet.evaluation.arm_folders import results_path
    from ratchet.evaluation.headline import complete_card
    from ratchet.evaluation.results import read_results
    from ratchet.evaluation.tables.comparison import print_candidates, print_null_counts, print_results
    from ratchet.evaluation.tables.suite import print_suite
    from ratchet.inference.adapters import is_adapter

    for results in suite:
        if results.arm(TRAINED) or len(suite) == 1:
            print_results(results)
    if len(suite) > 1 or any(arm.name not in (BASE, TRAINED) for arm in suite[0].arms):
        print_suite(suite)
    for results in suite:
        print_candidates(results)
        print_null_counts(results)
    for results in suite:
        print(f"written to {results_path(folder, results.split)}")
    stored = [read_results(results_path(folder, split)) for split in evaluation.question_sets]
    if is_adapter(folder.adapter):
        complete_card(folder.adapter, [results for results in stored if results is not None])
