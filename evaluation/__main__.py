"""python -m evaluation --config X [--round 1] [--split NAME] [--adapter DIR | --base-only]

Runs the base model, the round's adapter and the config's baselines on held-out questions and on the config's
benchmarks, and prints base against trained and methods side by side. Over many checkpoints, and over many runs:

    python -m evaluation --phase sample ...      runs the agents alone; --phase score then needs the judge alone
    python -m evaluation sweep --config X        checkpoints x systems x question sets; -h says more
    python -m evaluation leaderboard RUN...      the runs that were evaluated on the same questions, side by side

Made from what is stored, without a model:

    python -m evaluation table --config X        the same tables again
    python -m evaluation verdicts --config X     who said what where questions have labels, and scores by label
    python -m evaluation power --config X        how many questions it takes to see a gain
    python -m evaluation agreement --config X    how far the judge agrees with itself
    python -m evaluation thresholds --config X   when a debate may end: thresholds by quantile, from dev
    python -m evaluation members --config X      one adapter on the tasks of all the config's members
    python -m evaluation leakage --config X      what training and evaluation share
    python -m evaluation list                    the benchmarks that can be read
    python -m evaluation describe NAME           what one of them needs, and where it is expected
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evaluation.results import BASE, TRAINED, Results
from ratchet.command import add_config_arguments, add_phase_argument, config_of, run_command, wide_console
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.runfolder import RoundFolder, open_run

STORED = ("table", "verdicts", "power", "agreement")


def main() -> None:
    if sys.argv[1:2] == ["sweep"]:
        from evaluation.sweep.command import sweep

        return sweep(sys.argv[2:])
    if sys.argv[1:2] == ["leaderboard"]:
        from evaluation.tables.leaderboard import leaderboard

        return leaderboard(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m evaluation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = ("run", *STORED, "thresholds", "members", "leakage", "list", "describe")
    parser.add_argument("action", nargs="?", choices=actions, default="run", metavar="ACTION")
    parser.add_argument("name", nargs="?", help="describe: the benchmark's name")
    add_config_arguments(parser, required=False)
    parser.add_argument("--round", type=int, default=1, help="which round's adapter (default 1)")
    parser.add_argument(
        "--split", help="train, dev, test, or one of evaluation.benchmarks (default: evaluation.split and all of those)"
    )
    parser.add_argument(
        "--quantile", type=float, default=0.25, help="thresholds: the share of right answers that may miss them (0.25)"
    )
    add_phase_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--adapter", type=Path, help="another adapter folder than the round's")
    which.add_argument("--base-only", action="store_true", help="measure the base model and the baselines alone")
    arguments = parser.parse_args()
    if (arguments.name is not None) != (arguments.action == "describe"):
        parser.error("describe takes the name of a benchmark, the other actions take none")
    if arguments.action in ("list", "describe"):
        from evaluation.tables.listing import describe, list_benchmarks

        return describe(arguments.name) if arguments.name else list_benchmarks()
    if arguments.config is None:
        parser.error("--config is needed")
    config = config_of(arguments)
    if arguments.action == "leakage":
        from evaluation.tables.listing import print_leaks

        return print_leaks(config)
    if arguments.action == "members":
        from evaluation.tables.members import print_members

        return print_members(config, arguments.round)
    if arguments.action != "run" and (arguments.adapter or arguments.base_only):
        parser.error(f"{arguments.action} looks at the stored arms; --adapter and --base-only belong to a run")
    if arguments.action != "run" and arguments.phase != "all":
        parser.error(f"{arguments.action} looks at the stored arms; --phase belongs to a run")
    if config.members:
        raise UserError("this config's tasks are its members'; `python selftrain.py` evaluates them all")
    folder = open_run(config).round(arguments.round)
    if arguments.action == "thresholds":
        from evaluation.measures.thresholds import print_thresholds

        return print_thresholds(config, folder, arguments.split or "dev", arguments.quantile)
    _evaluate(config, folder, arguments)


def _evaluate(config: Config, folder: RoundFolder, arguments: argparse.Namespace) -> None:
    from evaluation.arms import evaluate, read_arm, results_path, run_arms, scores_path, splits_of, tabulate
    from evaluation.measures.agreement import agreement_table
    from evaluation.measures.power import power_table
    from evaluation.tables.suite import WIDTH
    from evaluation.tables.verdicts import print_verdicts
    from rewards.store import stored_scores

    splits = [arguments.split] if arguments.split else splits_of(config)
    if arguments.action == "run":
        adapter = None if arguments.base_only else arguments.adapter or folder.adapter
        if adapter is not None and not (adapter / "adapter_config.json").exists():
            raise UserError(
                f"{adapter}: there is no adapter here; train one first (accelerate launch train.py), "
                "or measure the base model alone with --base-only"
            )
        if arguments.phase == "sample":
            _, sampled = run_arms(config, folder, splits, adapter)
            for split, arms in sampled.items():
                made = ", ".join(f"{arm.name} {len(arm.keys)}" for arm in arms)
                print(f"{split}: trajectories in {folder.evaluation}: {made}")
            return
        found = evaluate(config, folder, arguments.round, splits, adapter, sampled=arguments.phase == "score")
    else:
        found = tabulate(config, folder, arguments.round, splits)
    if arguments.action in ("run", "table"):
        _print(found)
        for split in splits:
            print(f"written to {results_path(folder, config, split)}")
        return
    if arguments.action == "verdicts":
        print_verdicts(found)
        return
    for results in found:
        print(f"{results.title}:")
        if arguments.action == "power":
            table = power_table(results)
        else:
            records = [read_arm(folder, arm.name, results.split) for arm in results.arms]
            keys = {key for record in records if record for key in record.keys}
            table = agreement_table(stored_scores(scores_path(folder, results.split), keys).values())
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
