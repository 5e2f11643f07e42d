"""ratchet evaluate --config X: compare base, adapter and baselines, and print tables of stored results."""

from __future__ import annotations

import argparse
import os

from ratchet.commands.checks import check_scoring_extras, check_system_extras
from ratchet.commands.config import IN_LOOP, config_of, round_or_best
from ratchet.commands.recording import recorded_stages
from ratchet.core.config import Config, EvaluationConfig, load_members
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.evaluation.arms import question_set, results_path
from ratchet.evaluation.formats import shown_measures
from ratchet.evaluation.headline import complete_card
from ratchet.evaluation.results import TRAINED, Results, read_results
from ratchet.evaluation.round_arms import build_results, run_arms
from ratchet.evaluation.round_arms import evaluate as evaluate_arms
from ratchet.evaluation.tables.comparison import (
    print_candidates,
    print_measures,
    print_null_counts,
    print_summary,
)
from ratchet.evaluation.tables.suite import print_leaks, print_members, print_suite
from ratchet.evaluation.tables.verification import print_savings, print_thresholds, print_verdicts
from ratchet.inference.adapters import is_adapter
from ratchet.questions.leakage import leakage_between_splits
from ratchet.questions.manifest import open_run
from ratchet.rounds.records import StageId


def evaluate(config: Config, options: argparse.Namespace) -> None:
    """Run the base model, the round's adapter and the baselines on the question sets, and score them, or one of the
    two; print the methods side by side, and with --all-measures every measure."""
    check_system_extras(config)
    check_scoring_extras(config)
    folder, splits = open_round(config, options)
    adapter = None if options.base_only else options.adapter or folder.adapter
    if adapter is not None and not is_adapter(adapter):
        raise UserError(
            f"{adapter}: there is no adapter here; train an adapter first (ratchet train; with "
            "training.choose_by=reward, then `ratchet choose`), or measure the base model alone with "
            "--base-only"
        )
    sampling: tuple[StageId, ...] = ("evaluate.sample", "test.sample") if options.phase != "score" else ()
    scoring: tuple[StageId, ...] = ("evaluate", "test") if options.phase != "sample" else ()
    # An evaluation of one split of several is no complete stage.
    stages = (*sampling, *scoring) if splits == config.evaluation.question_sets else ()
    with recorded_stages(config, *stages, number=folder.number, adapter=adapter, anyway=options.anyway):
        if options.phase == "sample":
            arms = run_arms(config, folder, splits, adapter)
            for split in splits:
                counts = ", ".join(f"{arm.name} {len(arm.store.keys())}" for arm in arms if arm.asked.name == split)
                print(f"{split}: trajectories in {config.folder / 'arms' / split}: {counts}")
            return
        suite = evaluate_arms(config, folder, splits, adapter, sampled=options.phase == "score")
    _show(suite, folder, config.evaluation, options.all_measures)


def table(config: Config, options: argparse.Namespace) -> None:
    """Print the tables of a stored evaluation."""
    folder, splits = open_round(config, options)
    _show(build_results(config, folder, splits), folder, config.evaluation, options.all_measures)


def verdicts(config: Config, options: argparse.Namespace) -> None:
    """Print scores by label and the confusion between labels."""
    print_verdicts(build_results(config, *open_round(config, options)))


def savings(config: Config, options: argparse.Namespace) -> None:
    """Print how many tool calls an evidence memory saves."""
    print_savings(config, build_results(config, *open_round(config, options)))


def leakage(config: Config, options: argparse.Namespace) -> None:
    """Print what the config's splits share."""
    print_leaks(leakage_between_splits(config))


def thresholds(config: Config, options: argparse.Namespace) -> None:
    """Print thresholds for the scores by which a debate may end."""
    folder, [split] = open_round(config, options)
    print_thresholds(config, folder, split, options.quantile, options.setting)


def retrieval(options: argparse.Namespace) -> None:
    """Measure runs by judgements, or by the gold documents of a config's questions, and compare them with the first."""
    from ratchet.evaluation.trec import gold_qrels, measure_runs, parse_measures, print_runs  # late: they import Numba
    from ratchet.retrieval.trec import read_qrels, read_run

    measures = parse_measures(options.measures)
    if len(set(options.run)) < len(options.run):
        raise UserError("--run: names a file twice")
    if options.qrels is not None and options.split is not None:
        raise UserError("--qrels and --split both name judgements; leave one out")
    if options.qrels is not None:
        qrels, judged = read_qrels(options.qrels), str(options.qrels)
    elif options.config is not None:
        questions = question_set(config_of(options, plugins=False), options.split or "test").questions
        qrels, judged = gold_qrels(questions), f"gold documents of {options.split or 'test'}, each of relevance 1"
    else:
        raise UserError("name the judgements with --qrels FILE, or a config whose questions have gold documents")
    print_runs(measure_runs({str(path): read_run(path) for path in options.run}, qrels, measures), judged)


def members(config: Config, options: argparse.Namespace) -> None:
    """Print one adapter's results on the tasks of all members."""
    if not config.members:
        raise UserError("members: the config has no members; `ratchet evaluate table` shows its results")
    rows: list[tuple[str, Results]] = []
    for name, member in load_members(config).items():
        folder = RunFolder(config.folder / name).round(options.round)
        for split in member.evaluation.question_sets:
            results = read_results(results_path(folder, split))
            if results is None or results.comparison(TRAINED) is None:
                raise UserError(
                    f"{folder.path}: {name} was not evaluated with the shared adapter on {split!r} yet; "
                    "`ratchet selftrain` with this config does so"
                )
            rows.append((name, results))
    print_members(rows)


def open_round(config: Config, options: argparse.Namespace) -> tuple[RoundFolder, list[str]]:
    """Return the folder of the round, and the question sets that are asked for."""
    if config.members:
        raise UserError("the config has `members`, which `ratchet selftrain` evaluates")
    splits = [options.split] if options.split else config.evaluation.question_sets
    return round_or_best(open_run(config, splits), options.round), splits


def _show(suite: list[Results], folder: RoundFolder, evaluation: EvaluationConfig, all_measures: bool) -> None:
    if not os.environ.get(IN_LOOP):  # the loop prints it at its end
        print_summary(suite)
    if all_measures:
        for results in suite:
            print_measures(results)
        print_suite(suite)
        for results in suite:
            print_candidates(results)
            print_null_counts(results, shown_measures(results, "quality"))
    for results in suite:
        print(f"written to {results_path(folder, results.split)}")
    stored = [read_results(results_path(folder, split)) for split in evaluation.question_sets]
    if is_adapter(folder.adapter):
        complete_card(folder.adapter, [results for results in stored if results is not None])
