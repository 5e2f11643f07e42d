"""Score a round's trajectories and select what to train on; or try a selection under other weights.

    ratchet score --config X [--round 1] [--also em,f1]
    ratchet whatif --config X [--weights correctness=2,faithfulness=1] [--set rewards.select.ties=1]

The first writes `scores/` and `selection.json` in the round's folder. The second reads stored scores and writes
nothing: it shows what other weights and rules would keep.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ratchet.commands.arguments import (
    add_anyway_argument,
    add_round_argument,
    config_of,
    config_parser,
    config_words,
    recorded_stages,
)
from ratchet.commands.extras import check_scoring_extras
from ratchet.commands.subcommands import Subcommand, run_subcommand
from ratchet.core.console import PlainConsole
from ratchet.core.errors import UserError
from ratchet.core.escape import shell_line
from ratchet.core.files import read_record, write_json
from ratchet.core.records import Question, questions_digest
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.core.selection import Selection
from ratchet.questions.load import load_questions
from ratchet.questions.manifest import check_same, open_run
from ratchet.rewards.reward import load_reward
from ratchet.rewards.scoring import Scorer, check_question_ids, unfinished
from ratchet.rewards.selection import check_weights, parse_weights, select
from ratchet.rewards.store import current_scores
from ratchet.rewards.summary import (
    nothing_selected,
    scores_table,
    selection_table,
    single_answer,
    whatif_table,
)
from ratchet.sampling.store import TrajectoryStore
from ratchet.sampling.trajectories import Trajectories

DESCRIPTION = "Score a round's trajectories and select what to train on."


def main(words: Sequence[str] | None = None, prog: str = "ratchet score") -> None:
    """Run a command of `ratchet score`; `words` default to the process's arguments."""
    run_subcommand(SUBCOMMANDS, words, prog, DESCRIPTION, otherwise=score_and_select)


def score_and_select(words: Sequence[str], prog: str) -> None:
    """Score a round's trajectories, then write and print its selection."""
    parser = config_parser(prog, DESCRIPTION)
    add_round_argument(parser, "the round")
    add_anyway_argument(parser)
    parser.add_argument("--also", default="", help="further scores to compute for what-if, such as em,f1")
    parser.add_argument(
        "--accept-unfinished",
        action="store_true",
        help="select even where the judge was not available; those scores count as null",
    )
    parser.add_argument(
        "--may-be-empty",
        action="store_true",
        help="exit with status 0 even where nothing was selected, as in one of several rounds",
    )
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    check_scoring_extras(config)
    weights = config.rewards.weights
    check_weights(weights)
    also = [config.score_name(name.strip()) for name in arguments.also.split(",") if name.strip()]
    for name in also:
        load_reward(name, "--also")
    names = list(dict.fromkeys([*(name for name, weight in weights.items() if weight), *also]))
    round_folder = open_run(config, ("train",)).round(arguments.round)
    questions = load_questions(config.questions.train, config.seed)
    trajectories = _load_trajectories(questions, round_folder, arguments)
    with recorded_stages(config, "score", number=arguments.round, anyway=arguments.anyway):
        with Scorer(config) as scorer:
            scores = scorer.score(questions, trajectories, names, round_folder.scores)
        left = unfinished(scores)
        if left and not arguments.accept_unfinished:
            raise UserError(
                f"{len(left)} scores are unfinished because the judge was not available; nothing was selected. Run the "
                "same command again, or add --accept-unfinished to count them as null."
            )
        selection = select(questions, trajectories, scores, weights, config.rewards.select)
        write_json(round_folder.selection, selection.model_dump(mode="json"))

        judge = config.models.get(config.rewards.judge)
        made_by = f"{judge.served_name or judge.path}, {config.rewards.runs} runs" if judge else ""
        console = PlainConsole()
        console.print(scores_table(names, scores, made_by))
        console.print(selection_table(selection, trajectories.outlines.values()))
        console.print(str(round_folder.selection), soft_wrap=True)
        if not selection.kept:
            if not arguments.may_be_empty:
                raise UserError(nothing_selected(selection))
            print(f"warning: {nothing_selected(selection)}", file=sys.stderr)
        if warning := single_answer([trajectories.outlines[key] for key in selection.kept]):
            print(f"warning: {warning}", file=sys.stderr)


def whatif(words: Sequence[str], prog: str) -> None:
    """Compare the stored selection with one under other weights and rules; write nothing."""
    parser = config_parser(
        prog,
        "Select from stored scores under other weights or rules (--set rewards.select.KEY=VALUE), and compare; nothing "
        "is written.",
    )
    add_round_argument(parser, "the round")
    parser.add_argument("--weights", help="the weights to try, such as correctness=2,faithfulness=1")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    weights = config.rewards.weights
    if arguments.weights:
        weights = parse_weights(arguments.weights, "--weights", config.score_name)
    if check_same(config) is None:
        raise UserError(f"{config.folder}: no such run folder; sample and score before `whatif`")
    round_folder = RunFolder(config.folder).round(arguments.round)
    again = _command("score", arguments)
    now = read_record(round_folder.selection, Selection, f"write it again with `{again}`")
    if now is None:
        raise UserError(f"{round_folder.selection}: does not exist; score and select first: `{again}`")
    questions = load_questions(config.questions.train, config.seed)
    trajectories = _load_trajectories(questions, round_folder, arguments)
    scores = current_scores(round_folder.scores, trajectories)
    for name in (name for name, weight in weights.items() if weight):
        missing = sum((key, name) not in scores for key in trajectories)
        if missing:
            also = "" if config.rewards.weights.get(name) else f" --also {name}"
            raise UserError(
                f"{missing} of {len(trajectories)} trajectories have no stored {name}; compute it: `{again}{also}`"
            )
    then = select(questions, trajectories, scores, weights, config.rewards.select)
    PlainConsole().print(whatif_table(now, then))


def _load_trajectories(
    questions: Sequence[Question], round_folder: RoundFolder, arguments: argparse.Namespace
) -> Trajectories:
    """A round's trajectories, once each."""
    store = TrajectoryStore(round_folder.trajectories)
    sampled, planned = store.open(), store.keys()
    command = _command("sample", arguments)
    if not sampled:
        problem = "no planned trajectory is sampled yet" if planned else "no trajectories"
        raise UserError(f"{store.folder}: {problem}; sample first: `{command}`")
    check_question_ids({question.id for question in questions}, sampled.outlines.values())
    manifest = store.manifest()
    if manifest is None or manifest.questions != questions_digest(questions):
        raise UserError(f"{store.folder}: the questions were changed after sampling; sample again: `{command}`")
    if missing := len(planned) - len(sampled):
        print(f"{missing} trajectories are not sampled yet; `{command}` samples them", file=sys.stderr)
    return sampled


SUBCOMMANDS = {"whatif": Subcommand("select from stored scores under other weights; writes nothing", whatif)}


def _command(stage: str, arguments: argparse.Namespace) -> str:
    return shell_line(["ratchet", stage, *config_words(arguments), "--round", str(arguments.round)])
