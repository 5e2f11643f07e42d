"""Score a round's trajectories and select what to train on; or try a selection under other weights.

    python -m rewards --config X [--round 1] [--also em,f1]
    python -m rewards whatif --config X --weights correctness=2,faithfulness=1 [--min-reward 0.5] [--ties 1]

The first writes `scores/` and `selection.json` in the round's folder. The second reads stored scores and writes
nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import ValidationError

from questions.load import load_questions
from ratchet.command import PlainConsole, config_of, config_parser, run_command
from ratchet.config import Config, ScoreName
from ratchet.errors import UserError, did_you_mean
from ratchet.files import write_json
from ratchet.records import Conversation, Question, Selection, Span, Trajectory, questions_digest
from ratchet.runfolder import RoundFolder, RunFolder, open_run
from ratchet.subcommands import Subcommand, run_subcommand
from rewards.scoring import check_known, score_trajectories, unfinished
from rewards.selection import check_weights, select
from rewards.store import stored_scores
from rewards.summary import nothing_selected, scores_table, selection_table, whatif_table
from sampling.store import TrajectoryStore

DESCRIPTION = "Score a round's trajectories and select what to train on."


def main(words: Sequence[str] | None = None, prog: str = "python -m rewards") -> None:
    run_subcommand(SUBCOMMANDS, words, prog, DESCRIPTION, otherwise=score_and_select)


def score_and_select(words: Sequence[str], prog: str) -> None:
    parser = config_parser(prog, DESCRIPTION)
    parser.add_argument("--round", type=int, default=1, help="the round (default 1)")
    parser.add_argument("--also", default="", help="further scores to compute, such as em,f1: for what-if")
    parser.add_argument(
        "--accept-unfinished",
        action="store_true",
        help="select even where the judge could not be reached; those scores count as null",
    )
    parser.add_argument(
        "--may-be-empty",
        action="store_true",
        help="end well where nothing was kept, as one of several rounds may",
    )
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    weights = {str(name): weight for name, weight in config.rewards.weights.items()}
    check_weights(weights)
    also = [name.strip() for name in arguments.also.split(",") if name.strip()]
    for name in also:
        _check_name("--also", name)
    names = list(dict.fromkeys([*(name for name, weight in weights.items() if weight), *also]))
    round_folder = open_run(config).round(arguments.round)
    questions = load_questions(config.questions.train, config.seed)
    trajectories = load_trajectories(questions, round_folder, config, arguments)

    scores = score_trajectories(config, questions, trajectories, names, round_folder.scores)
    left = unfinished(scores)
    if left and not arguments.accept_unfinished:
        raise UserError(
            f"{len(left)} scores are unfinished because the judge could not be reached; nothing was selected. Run the "
            "same command again, or add --accept-unfinished to count them as null."
        )
    selection = select(questions, trajectories, scores, weights, config.rewards.select)
    write_json(round_folder.selection, selection.model_dump(mode="json"))

    judge = config.models.get(config.rewards.judge)
    made_by = f"{judge.served_name or judge.path}, {config.rewards.runs} runs" if judge else ""
    console = PlainConsole()
    console.print(scores_table(names, scores, made_by))
    console.print(selection_table(selection, trajectories))
    console.print(str(round_folder.selection), soft_wrap=True)
    if not selection.kept:
        if not arguments.may_be_empty:
            raise UserError(nothing_selected(selection))
        print(f"warning: {nothing_selected(selection)}", file=sys.stderr)


def whatif(words: Sequence[str], prog: str) -> None:
    parser = config_parser(prog, "Select from stored scores under other weights, and compare; nothing is written.")
    parser.add_argument("--round", type=int, default=1, help="the round (default 1)")
    parser.add_argument("--weights", required=True, help="such as correctness=2,faithfulness=1")
    parser.add_argument("--min-reward", type=float, help="default: the config's")
    parser.add_argument("--ties", type=int, help="default: the config's")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    weights = parse_weights(arguments.weights)
    rule = config.rewards.select
    changes = {"min_reward": arguments.min_reward, "ties": arguments.ties}
    try:
        rule = type(rule)(
            **{**rule.model_dump(), **{key: value for key, value in changes.items() if value is not None}}
        )
    except ValidationError as error:
        problem = error.errors()[0]
        raise UserError(f"--{str(problem['loc'][0]).replace('_', '-')}: {problem['msg']}") from error
    run = RunFolder(config.folder)
    if not run.config.exists():
        raise UserError(f"{run.path}: no such run folder; sample and score before asking what if")
    round_folder = open_run(config).round(arguments.round)
    again = f"python -m rewards --config {arguments.config} --round {arguments.round}"
    if not round_folder.selection.exists():
        raise UserError(f"{round_folder.selection}: not there; score and select first: `{again}`")
    try:
        now = Selection.model_validate(json.loads(round_folder.selection.read_text()))
    except ValueError as error:
        raise UserError(f"{round_folder.selection}: not a selection; make it anew: `{again}`") from error
    questions = load_questions(config.questions.train, config.seed)
    trajectories = load_trajectories(questions, round_folder, config, arguments)
    scores = stored_scores(round_folder.scores, {trajectory.key for trajectory in trajectories})
    weighted = {str(name) for name, weight in config.rewards.weights.items() if weight}
    for name in (name for name, weight in weights.items() if weight):
        missing = sum((trajectory.key, name) not in scores for trajectory in trajectories)
        if missing:
            also = "" if name in weighted else f" --also {name}"
            raise UserError(
                f"{missing} of {len(trajectories)} trajectories have no stored {name}; compute it: `{again}{also}`"
            )
    then = select(questions, trajectories, scores, weights, rule)
    PlainConsole().print(whatif_table(now, then))


def parse_weights(text: str) -> dict[str, float]:
    """'correctness=2,faithfulness=1' as a mapping."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        try:
            weight = float(value)
        except ValueError:
            sign = ""
        if not sign:
            raise UserError(f"--weights {text}: expected name=number,name=number, got {part!r}")
        _check_name("--weights", name)
        weights[name] = weight
    check_weights(weights)
    return weights


def _check_name(option: str, name: str) -> None:
    known = get_args(ScoreName)
    if name not in known:
        raise UserError(f"{option}: {name!r} is not a score{did_you_mean(name, known)}")


def load_trajectories(
    questions: Sequence[Question], round_folder: RoundFolder, config: Config, arguments: argparse.Namespace
) -> list[Trajectory]:
    """A round's trajectories, once each, without what neither scoring nor selection looks at.

    A paper-sized round has gigabytes of token ids and logged documents; what is left fits a laptop.
    """
    store = TrajectoryStore(round_folder.trajectories)
    found, planned = store.load(reduced=slim), store.keys()
    command = f"python -m sampling --config {arguments.config} --round {arguments.round}"
    if not found:
        what = "none of what is to be sampled is there yet" if planned else "no trajectories"
        raise UserError(f"{store.folder}: {what}; sample first: `{command}`")
    check_known({question.id for question in questions}, found)
    manifest = store.manifest()
    if manifest is None or manifest.questions != questions_digest(questions):
        raise UserError(f"{store.folder}: the questions were changed after sampling; sample again: `{command}`")
    if missing := len(planned) - len(found):
        print(f"{missing} trajectories are not sampled yet; `{command}` samples them", file=sys.stderr)
    return found


def slim(trajectory: Trajectory) -> Trajectory:
    """Without events, and of the conversations only what was sampled."""
    conversations = []
    for conversation in trajectory.conversations:
        ids: list[int] = []
        spans: list[Span] = []
        for span in conversation.spans:
            if span.sampled:
                start = len(ids)
                ids += conversation.ids[span.start : span.end]
                spans.append(span.model_copy(update={"start": start, "end": len(ids)}))
        fields: dict[str, Any] = {**dict(conversation), "ids": tuple(ids), "spans": tuple(spans)}
        conversations.append(Conversation(**fields))
    return trajectory.model_copy(update={"events": (), "conversations": tuple(conversations)})


SUBCOMMANDS = {"whatif": Subcommand("select from stored scores under other weights; writes nothing", whatif)}


if __name__ == "__main__":
    run_command(main)
