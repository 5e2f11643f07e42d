"""Tables of stored trajectories: sheets that people judge, scores of a debate's turns, accuracy with equal tokens."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commands.arguments import add_round_argument, config_of, config_parser
from questions.manifest import open_run
from ratchet.config import Config, EvaluationConfig, load_members
from ratchet.errors import UserError
from ratchet.files import write_atomic
from ratchet.runfolder import RoundFolder, RunFolder

if TYPE_CHECKING:
    from evaluation.results import Results
    from evaluation.tables.adjudication import Judged


def adjudicate(words: Sequence[str], prog: str) -> None:
    """Write the sheet."""
    parser = _parser(prog, "Write a CSV sheet of an arm's trajectories for people to judge.")
    parser.add_argument("--split", help="the question set (default: evaluation.split)")
    parser.add_argument("--out", type=Path, required=True, help="the sheet's file; one that is there is not replaced")
    parser.add_argument("--arm", default="base", help="base (default), adapter, or a baseline's name in the config")
    parser.add_argument("--which", choices=("wrong", "all"), default="wrong", help="default: wrong verdicts")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, drawn with the config's seed")
    arguments, config, folder = _opened(parser, words)
    from evaluation.arms import arm_settings
    from evaluation.tables.adjudication import ERRORS, NONE, PARTS, UNCERTAIN, drawn, judged_trajectories, sheet
    from evaluation.tables.stored import stored_set

    stored = stored_set(arm_settings(config), folder, arguments.split or config.evaluation.split)
    judged = [
        each
        for each in judged_trajectories(stored, arguments.arm).values()
        if arguments.which == "all" or each.trajectory.answer != each.question.label
    ]
    chosen = drawn(judged, arguments.sample, config.seed)
    if arguments.out.exists():
        raise UserError(f"{arguments.out}: is there already, and may hold judgements; name another file")
    write_atomic(arguments.out, sheet(chosen))
    print(f"{len(chosen)} of {len(judged)} trajectories written to {arguments.out}")
    print(f"label: a label of the task, or {UNCERTAIN}. wrong_parts: {NONE}, or some of {'; '.join(PARTS)}. errors:")
    for name, meaning in ERRORS.items():
        print(f"  {name}: {meaning}")


def adjudicated(words: Sequence[str], prog: str) -> None:
    """Print what the sheets say."""
    parser = _parser(prog, "Print who was wrong by the sheets that people filled in, why, and how they agree.")
    parser.add_argument("sheets", nargs="+", type=Path, help="sheets of `adjudicate`, filled in")
    arguments, config, folder = _opened(parser, words)
    from evaluation.arms import arm_settings
    from evaluation.tables.adjudication import judged_trajectories, print_judgements, read_sheet
    from evaluation.tables.stored import stored_set

    settings = arm_settings(config)
    arms: dict[tuple[str, str], dict[str, Judged]] = {}

    def judged(split: str, arm: str) -> Mapping[str, Judged]:
        if (split, arm) not in arms:
            arms[split, arm] = judged_trajectories(stored_set(settings, folder, split), arm)
        return arms[split, arm]

    judgements = [judgement for path in arguments.sheets for judgement in read_sheet(path, judged)]
    if not judgements:
        raise UserError(f"{', '.join(map(str, arguments.sheets))}: no line has a label; nothing was judged yet")
    [((annotator, key), count)] = Counter((each.annotator, each.key) for each in judgements).most_common(1)
    if count > 1:
        raise UserError(
            f"{annotator} judged a trajectory twice ({key}): leave one sheet out, or fill in the column annotator"
        )
    print_judgements(judgements, arms)


def thresholds(words: Sequence[str], prog: str) -> None:
    """Print thresholds for the scores by which a debate may end."""
    parser = _parser(
        prog, "Thresholds for the scores by which a debate may end, by quantile, from stored trajectories."
    )
    parser.add_argument("--split", default="dev", help="dev (default) or train")
    about = "the share of correct answers that may stay below a threshold (default 0.25)"
    parser.add_argument("--quantile", type=float, default=0.25, help=about)
    about = "print only the argument of --set that gives the first method's thresholds to every system"
    parser.add_argument("--setting", action="store_true", help=about)
    arguments, config, folder = _opened(parser, words)
    from evaluation.arms import arm_settings
    from evaluation.tables.debates import print_thresholds
    from evaluation.tables.stored import stored_set

    stored = stored_set(arm_settings(config), folder, arguments.split)
    print_thresholds(stored, arguments.quantile, arguments.setting)


def stability(words: Sequence[str], prog: str) -> None:
    """Print the scores of right and wrong turns, and draw them."""
    parser = _parser(prog, "Scores of a debate's turns by agent, round, and right and wrong. It needs no model.")
    _, config, folder = _opened(parser, words)
    from evaluation.arms import arm_settings
    from evaluation.round_arms import evaluated_splits
    from evaluation.tables.debates import print_stability
    from evaluation.tables.stored import stored_set

    stored = (stored_set(arm_settings(config), folder, split) for split in evaluated_splits(folder))
    for path in print_stability(stored, folder.evaluation / "stability"):
        print(f"written to {path}")


def budgets(words: Sequence[str], prog: str) -> None:
    """Print the methods' accuracy with equal numbers of tokens."""
    parser = _parser(prog, "Compare methods with equal numbers of tokens: cheap ones vote. It needs no model.")
    _, config, folder = _opened(parser, words)
    from evaluation.arms import arm_settings
    from evaluation.tables.budgets import print_budgets
    from evaluation.tables.stored import stored_set

    settings = arm_settings(config)
    for split in config.evaluation.question_sets:
        print_budgets(settings, stored_set(settings, folder, split))


def ablations(words: Sequence[str], prog: str) -> None:
    """Draw the primary measure by the values of each setting that a baseline changes."""
    parser = _parser(prog, "Plots of what single settings of the system change. It needs no model.")
    _, config, folder = _opened(parser, words)
    from evaluation.tables.settings import ablated_settings, draw
    from evaluation.tables.stored import save_figures

    suite = [results for results in _stored_results(folder, config.evaluation).values() if results is not None]
    settings = ablated_settings(config.system, config.evaluation.baselines)
    if not settings:
        raise UserError(
            "evaluation.baselines: none is the config's system with one setting changed; add such baselines"
        )
    if not suite:
        raise UserError(f"{folder.evaluation}: there are no results yet; run `python -m evaluation` first")
    figures = {name: draw(name, arms, suite) for name, arms in settings.items()}
    for path in save_figures(figures, folder.evaluation / "ablations"):
        print(f"written to {path}")


def members(words: Sequence[str], prog: str) -> None:
    """Print one adapter's results on the tasks of all members."""
    parser = _parser(prog, "One adapter's results on the tasks of all the config's members, from stored results.")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    from evaluation.results import TRAINED
    from evaluation.tables.suite import print_members

    if not config.members:
        raise UserError("members: this config has none; `python -m evaluation table` shows its own results")
    rows: list[tuple[str, Results]] = []
    for name, member in load_members(config).items():
        folder = RunFolder(config.folder / name).round(arguments.round)
        for split, results in _stored_results(folder, member.evaluation).items():
            if results is None or results.comparison(TRAINED) is None:
                raise UserError(
                    f"{folder.path}: {name} was not evaluated with the shared adapter on {split!r} yet; "
                    "`python selftrain.py` with this config does so"
                )
            rows.append((name, results))
    print_members(rows)


def _parser(prog: str, about: str) -> argparse.ArgumentParser:
    parser = config_parser(prog, about)
    add_round_argument(parser, "the round that was evaluated")
    return parser


def _opened(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, Config, RoundFolder]:
    """The arguments, the config that they name and the folder of their round."""
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    return arguments, config, open_run(config).round(arguments.round)


def _stored_results(folder: RoundFolder, evaluation: EvaluationConfig) -> dict[str, Results | None]:
    """By question set, the results of a round; None where there are none yet."""
    from evaluation.results import read_results
    from evaluation.round_arms import results_path

    return {split: read_results(results_path(folder, evaluation, split)) for split in evaluation.question_sets}
