"""python -m evaluation --config X: base against trained, methods side by side, and tables of what is stored."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from evaluation.results import BASE, TRAINED, Results
from ratchet.command import add_phase_argument, config_of, config_parser, run_command, wide_console
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.runfolder import RoundFolder, open_run
from ratchet.subcommands import Subcommand, run_subcommand

ABOUT = """Run the base model, the round's adapter and the config's baselines on held-out questions and on the config's
benchmarks, and print base against trained and methods side by side."""


def main(words: Sequence[str] | None = None, prog: str = "python -m evaluation") -> None:
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT, otherwise=run)


def run(words: Sequence[str], prog: str) -> None:
    """Run the arms and score them, or one of the two."""
    parser = _parser(prog, ABOUT)
    add_phase_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--adapter", type=Path, help="another adapter folder than the round's")
    which.add_argument("--base-only", action="store_true", help="measure the base model and the baselines alone")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    _evaluate("run", config, _folder(config, arguments), arguments)


def stored(action: str, words: Sequence[str], prog: str) -> None:
    """Tables of what earlier runs stored."""
    parser = _parser(prog, f"{STORED[action].capitalize()}. Made from what is stored, without a model.")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    _evaluate(action, config, _folder(config, arguments), arguments)


def thresholds(words: Sequence[str], prog: str) -> None:
    parser = _parser(prog, "When a debate may end: thresholds by quantile, from what is stored.")
    parser.add_argument(
        "--quantile", type=float, default=0.25, help="the share of right answers that may miss them (default 0.25)"
    )
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    from evaluation.measures.thresholds import print_thresholds

    print_thresholds(config, _folder(config, arguments), arguments.split or "dev", arguments.quantile)


def members(words: Sequence[str], prog: str) -> None:
    parser = config_parser(prog, "One adapter on the tasks of all the config's members, from what is stored.")
    parser.add_argument("--round", type=int, default=1, help="which round's adapter (default 1)")
    arguments = parser.parse_args(words)
    from evaluation.tables.members import print_members

    print_members(config_of(arguments), arguments.round)


def leakage(words: Sequence[str], prog: str) -> None:
    arguments = config_parser(prog, "What training and evaluation share.").parse_args(words)
    from evaluation.tables.listing import print_leaks

    print_leaks(config_of(arguments))


def list_all(words: Sequence[str], prog: str) -> None:
    argparse.ArgumentParser(prog=prog, description="List the benchmarks that can be read.").parse_args(words)
    from evaluation.tables.listing import list_benchmarks

    list_benchmarks()


def describe_one(words: Sequence[str], prog: str) -> None:
    parser = argparse.ArgumentParser(prog=prog, description="What a benchmark needs, and where it is expected.")
    parser.add_argument("name", help="the benchmark's name")
    arguments = parser.parse_args(words)
    from evaluation.tables.listing import describe

    describe(arguments.name)


def _parser(prog: str, description: str) -> argparse.ArgumentParser:
    parser = config_parser(prog, description)
    parser.add_argument("--round", type=int, default=1, help="which round's adapter (default 1)")
    parser.add_argument(
        "--split", help="train, dev, test, or one of evaluation.benchmarks (default: evaluation.split and all of those)"
    )
    return parser


def _folder(config: Config, arguments: argparse.Namespace) -> RoundFolder:
    if config.members:
        raise UserError("this config's tasks are its members'; `python selftrain.py` evaluates them all")
    return open_run(config).round(arguments.round)


STORED = {
    "table": "the tables of a run again",
    "verdicts": "who said what where questions have labels, and scores by label",
    "power": "how many questions it takes to see a gain",
    "agreement": "how far the judge agrees with itself",
}
SUBCOMMANDS = {
    "run": Subcommand("the same as without a command", run),
    "sweep": Subcommand("checkpoints x systems x question sets", "evaluation.sweep.command:sweep"),
    "leaderboard": Subcommand(
        "the runs that were evaluated on the same questions", "evaluation.tables.leaderboard:leaderboard"
    ),
    **{action: Subcommand(about, partial(stored, action)) for action, about in STORED.items()},
    "thresholds": Subcommand("when a debate may end: thresholds by quantile, from dev", thresholds),
    "members": Subcommand("one adapter on the tasks of all the config's members", members),
    "leakage": Subcommand("what training and evaluation share", leakage),
    "list": Subcommand("the benchmarks that can be read", list_all),
    "describe": Subcommand("what one of them needs, and where it is expected", describe_one),
}


def _evaluate(action: str, config: Config, folder: RoundFolder, arguments: argparse.Namespace) -> None:
    from evaluation.arms import evaluate, read_arms, results_path, run_arms, splits_of, stored_arm_scores, tabulate
    from evaluation.measures.agreement import agreement_table
    from evaluation.measures.power import power_table
    from evaluation.tables.suite import WIDTH
    from evaluation.tables.verdicts import print_verdicts

    splits = [arguments.split] if arguments.split else splits_of(config)
    if action == "run":
        adapter = None if arguments.base_only else arguments.adapter or folder.adapter
        if adapter is not None and not (adapter / "adapter_config.json").exists():
            raise UserError(
                f"{adapter}: there is no adapter here; train one first (accelerate launch train.py), "
                "or measure the base model alone with --base-only"
            )
        if arguments.phase == "sample":
            arms = run_arms(config, folder, splits, adapter)
            for split in splits:
                made = ", ".join(f"{arm.name} {len(arm.store.keys())}" for arm in arms if arm.asked.name == split)
                print(f"{split}: trajectories in {config.folder / 'arms' / split}: {made}")
            return
        found = evaluate(config, folder, arguments.round, splits, adapter, sampled=arguments.phase == "score")
    else:
        found = tabulate(config, folder, arguments.round, splits)
    if action in ("run", "table"):
        _print(found)
        for split in splits:
            print(f"written to {results_path(folder, config, split)}")
        return
    if action == "verdicts":
        print_verdicts(found)
        return
    for results in found:
        print(f"{results.title}:")
        if action == "power":
            table = power_table(results)
        else:
            table = agreement_table(stored_arm_scores(read_arms(folder, results.split).values()).values())
        wide_console(WIDTH).print(table)


def _print(found: list[Results]) -> None:
    from evaluation.tables.comparison import print_candidates, print_left_out, print_results
    from evaluation.tables.suite import print_suite

    for results in found:
        if results.arm(TRAINED) or len(found) == 1:
            print_results(results)
    if len(found) > 1 or any(arm.name not in (BASE, TRAINED) for arm in found[0].arms):
        print_suite(found)
    for results in found:
        print_candidates(results)
        print_left_out(results)


if __name__ == "__main__":
    run_command(main)
