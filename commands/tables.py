"""Tables of stored trajectories: thresholds of a debate's scores, results of members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.commands.arguments import add_round_argument, config_of, config_parser
from ratchet.commands.evaluate import open_round, stored_parser
from ratchet.core.config import EvaluationConfig, load_members
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RoundFolder, RunFolder

if TYPE_CHECKING:
    from ratchet.evaluation.results import Results


def thresholds(words: Sequence[str], prog: str) -> None:
    """Print thresholds for the scores by which a debate may end."""
    parser = stored_parser(
        prog, "Thresholds for the scores by which a debate may end, by quantile, from stored trajectories.", split="dev"
    )
    about = "the share of correct answers that may stay below a threshold (default 0.25)"
    parser.add_argument("--quantile", type=float, default=0.25, help=about)
    about = "print only the argument of --set that gives the first method's thresholds to every system"
    parser.add_argument("--setting", action="store_true", help=about)
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    folder, [split] = open_round(config, arguments)
    from ratchet.evaluation.tables.stored import stored_set
    from ratchet.evaluation.tables.thresholds import print_thresholds

    print_thresholds(stored_set(config, folder, split), arguments.quantile, arguments.setting)


def members(words: Sequence[str], prog: str) -> None:
    """Print one adapter's results on the tasks of all members."""
    parser = config_parser(prog, "One adapter's results on the tasks of all the config's members, from stored results.")
    add_round_argument(parser, "the round that was evaluated")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    from ratchet.evaluation.results import TRAINED
    from ratchet.evaluation.tables.suite import print_members

    if not config.members:
        raise UserError("members: the config has no members; `ratchet evaluate table` shows its results")
    rows: list[tuple[str, Results]] = []
    for name, member in load_members(config).items():
        folder = RunFolder(config.folder / name).round(arguments.round)
        for split, results in _stored_results(folder, member.evaluation).items():
            if results is None or results.comparison(TRAINED) is None:
                raise UserError(
                    f"{folder.path}: {name} was not evaluated with the shared adapter on {split!r} yet; "
                    "`ratchet selftrain` with this config does so"
                )
            rows.append((name, results))
    print_members(rows)


def _stored_results(folder: RoundFolder, evaluation: EvaluationConfig) -> dict[str, Results | None]:
    """By question set, the results of a round; None where there are none yet."""
    from ratchet.evaluation.arm_folders import results_path
    from ratchet.evaluation.results import read_results

    return {split: read_results(results_path(folder, split)) for split in evaluation.question_sets}
