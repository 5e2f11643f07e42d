"""Tables of stored trajectories: sheets that people judge, scores of a debate's turns, accuracy with equal tokens."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from commands.arguments import add_round_argument, config_of, config_parser
from evaluation.measures.adjudication import ERRORS, PARTS, UNCERTAIN, Judgement
from evaluation.results import read_results
from evaluation.round_arms import evaluated_splits, results_path
from evaluation.tables.ablations import ablated_settings, draw
from evaluation.tables.adjudication import NONE, Judged, drawn, judged_trajectories, print_judgements, read_sheet, sheet
from evaluation.tables.budgets import print_budgets
from evaluation.tables.stability import FORMATS, draw_all, save_figures, stored_scores
from questions.manifest import open_run
from ratchet.errors import UserError
from ratchet.files import write_atomic


def adjudicate(words: Sequence[str], prog: str) -> None:
    """Write the sheet."""
    parser = _parser(prog, "Write a CSV sheet of an arm's trajectories for people to judge.")
    parser.add_argument("--out", type=Path, required=True, help="the sheet's file; one that is there is not replaced")
    parser.add_argument("--arm", default="base", help="base (default), adapter, or a baseline's name in the config")
    parser.add_argument("--which", choices=("wrong", "all"), default="wrong", help="default: wrong verdicts")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, drawn with the config's seed")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    found = [
        one
        for one in judged_trajectories(
            config, arguments.round, arguments.split or config.evaluation.split, arguments.arm
        )
        if arguments.which == "all" or one.trajectory.answer != one.question.label
    ]
    kept = drawn(found, arguments.sample, config.seed)
    if arguments.out.exists():
        raise UserError(f"{arguments.out}: is there already, and may hold judgements; name another file")
    write_atomic(arguments.out, sheet(kept))
    print(f"{len(kept)} of {len(found)} trajectories written to {arguments.out}")
    print(f"label: a label of the task, or {UNCERTAIN}. wrong_parts: {NONE}, or some of {'; '.join(PARTS)}. errors:")
    for name, meaning in ERRORS.items():
        print(f"  {name}: {meaning}")


def adjudicated(words: Sequence[str], prog: str) -> None:
    """Print what the sheets say."""
    parser = _parser(prog, "Print who was wrong by the sheets that people filled in, why, and how they agree.")
    parser.add_argument("sheets", nargs="+", type=Path, help="sheets of `adjudicate`, filled in")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    known: dict[tuple[str, str], dict[str, Judged]] = {}
    judgements: list[Judgement] = []
    for path in arguments.sheets:
        judgements += list(read_sheet(path, config, arguments.round, known))
    if not judgements:
        raise UserError(f"{', '.join(map(str, arguments.sheets))}: no line has a label; nothing was judged yet")
    [(twice, count)] = Counter((one.annotator, one.key) for one in judgements).most_common(1)
    if count > 1:
        raise UserError(
            f"{twice[0]} judged a trajectory twice ({twice[1]}): leave one sheet out, or fill in the column annotator"
        )
    print_judgements(judgements, known)


def _parser(prog: str, about: str) -> argparse.ArgumentParser:
    parser = config_parser(prog, about)
    add_round_argument(parser, "the round that was evaluated")
    parser.add_argument("--split", help="the question set (default: evaluation.split)")
    return parser


def stability(words: Sequence[str], prog: str) -> None:
    """Print the scores of right and wrong turns, and draw them."""
    parser = config_parser(prog, "Scores of a debate's turns by agent, round, and right and wrong. It needs no model.")
    add_round_argument(parser, "the round that was evaluated")
    parser.add_argument("--split", action="append", help="a question set; may be repeated (default: all evaluated)")
    parser.add_argument("--out", type=Path, help="the figures' folder (default: evaluation/stability of the round)")
    parser.add_argument("--format", choices=FORMATS, default="svg", help="of the figures (default svg)")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    folder = open_run(config).round(arguments.round)
    found = stored_scores(config, folder, arguments.split or evaluated_splits(folder))
    for path in draw_all(found, arguments.out or folder.evaluation / "stability", arguments.format):
        print(f"written to {path}")


def budgets(words: Sequence[str], prog: str) -> None:
    """Print the methods' accuracy with equal numbers of tokens."""
    parser = config_parser(prog, "Compare methods with equal numbers of tokens: cheap ones vote. It needs no model.")
    add_round_argument(parser, "the round that was evaluated")
    parser.add_argument("--split", help="one question set (default: evaluation.split and the benchmarks)")
    parser.add_argument("--tokens", type=float, help="the budget (default: what the most expensive method needs)")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    folder = open_run(config).round(arguments.round)
    for split in [arguments.split] if arguments.split else config.evaluation.question_sets:
        print_budgets(config, folder, split, arguments.tokens)


def ablations(words: Sequence[str], prog: str) -> None:
    """Draw the primary measure by the values of each setting that a baseline changes."""
    parser = config_parser(prog, "Plots of what single settings of the system change. It needs no model.")
    add_round_argument(parser, "the round that was evaluated")
    parser.add_argument("--out", type=Path, help="the figures' folder (default: evaluation/ablations of the round)")
    parser.add_argument("--format", choices=FORMATS, default="svg", help="of the figures (default svg)")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    folder = open_run(config).round(arguments.round)
    stored = [read_results(results_path(folder, config.evaluation, split)) for split in config.evaluation.question_sets]
    results = [one for one in stored if one is not None]
    settings = ablated_settings(config)
    if not settings:
        raise UserError(
            "evaluation.baselines: none is the config's system with one setting changed; add such baselines"
        )
    if not results:
        raise UserError(f"{folder.evaluation}: there are no results yet; run `python -m evaluation` first")
    figures = {name: draw(name, arms, results) for name, arms in settings.items()}
    for path in save_figures(figures, arguments.out or folder.evaluation / "ablations", arguments.format):
        print(f"written to {path}")
