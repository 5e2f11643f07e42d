"""Score a round's trajectories and select what to train on; or try a selection under other weights.

`ratchet score` writes `scores/` and `selection.json` in the round's folder. `ratchet score whatif` reads stored scores
and writes nothing: it shows what other weights and rules would keep.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ratchet.commands.checks import check_scoring_extras
from ratchet.commands.config import config_words
from ratchet.commands.recording import recorded_stages
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.escape import shell_line
from ratchet.core.files import read_record, write_json
from ratchet.core.records import Question, Selection, questions_digest
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.core.tables import NARROW, PlainConsole, wide_console
from ratchet.evaluation.measures.agreement import agreement_rows
from ratchet.questions.load import load_questions
from ratchet.questions.manifest import check_same, open_run
from ratchet.rewards.reward import check_weights, load_reward
from ratchet.rewards.scoring import Scorer, check_question_ids, unfinished
from ratchet.rewards.selection import parse_weights, select
from ratchet.rewards.store import current_scores
from ratchet.rewards.summary import (
    cut_off_costs,
    nothing_selected,
    scores_lines,
    selection_lines,
    single_answer,
    whatif_table,
)
from ratchet.sampling.store import Trajectories, TrajectoryStore


def score(config: Config, options: argparse.Namespace) -> None:
    """Score a round's trajectories, then write and print its selection."""
    check_scoring_extras(config)
    weights = config.rewards.weights
    check_weights(weights)
    also = [config.score_name(name.strip()) for name in options.also.split(",") if name.strip()]
    for name in also:
        load_reward(name, "--also")
    names = list(dict.fromkeys([*weights, *also]))
    round_folder = open_run(config, ("train",)).round(options.round)
    questions = load_questions(config.questions.train, config.seed)
    trajectories = _load_trajectories(questions, round_folder, options)
    with recorded_stages(config, "score", number=options.round, anyway=options.anyway):
        with Scorer(config, selects=True) as scorer:
            scores = scorer.score(questions, trajectories, names, round_folder.scores)
        left = unfinished(scores)
        if left and not options.accept_unfinished:
            raise UserError(
                f"{len(left)} scores are unfinished because the judge was not available; nothing was selected. Run the "
                "same command again, or add --accept-unfinished to count them as null."
            )
        selection = select(questions, trajectories, scores, weights, config.rewards.select)
        write_json(round_folder.selection, selection.model_dump(mode="json"))

        judge = config.models.get(config.rewards.judge)
        least, most = config.rewards.runs.least, config.rewards.runs.most
        runs = f"{most} runs" if least == most else f"{least} to {most} runs"
        made_by = f"{judge.served_name or judge.path}, {runs}" if judge else ""
        console = wide_console(NARROW)
        chosen = selection_lines(selection)
        for line in (*scores_lines(names, scores, made_by), *chosen):
            console.print(line, markup=False)
        console.print(str(round_folder.selection), soft_wrap=True, markup=False)
        if warning := cut_off_costs(selection, trajectories.outlines.values()):
            print(f"warning: {warning}", file=sys.stderr)
        if not selection.kept:
            if not options.may_be_empty:
                raise UserError(nothing_selected(selection))
            print(f"warning: {nothing_selected(selection)}", file=sys.stderr)
        if warning := single_answer([trajectories.outlines[key] for key in selection.kept]):
            print(f"warning: {warning}", file=sys.stderr)


def whatif(config: Config, options: argparse.Namespace) -> None:
    """Compare the stored selection with one under other weights and rules, or by scores that were stored under other
    settings of the judge; write nothing."""
    weights = config.rewards.weights
    if options.weights:
        weights = parse_weights(options.weights, "--weights", config.score_name)
    if check_same(config) is None:
        raise UserError(f"{config.folder}: no such run folder; sample and score before `whatif`")
    round_folder = RunFolder(config.folder).round(options.round)
    again = _command("score", options)
    now = read_record(round_folder.selection, Selection, f"write it again with `{again}`")
    if now is None:
        raise UserError(f"{round_folder.selection}: does not exist; score and select first: `{again}`")
    questions = load_questions(config.questions.train, config.seed)
    trajectories = _load_trajectories(questions, round_folder, options)
    scores = current_scores(round_folder.scores, trajectories)
    for name in (name for name, weight in weights.items() if weight):
        missing = sum((key, name) not in scores for key in trajectories)
        if missing:
            also = "" if config.rewards.weights.get(name) else f" --also {name}"
            raise UserError(
                f"{missing} of {len(trajectories)} trajectories have no stored {name}; compute it: `{again}{also}`"
            )
    with Scorer(config, selects=True) as scorer:
        own = scorer.stored(questions, trajectories, weights, round_folder.scores)
    then = select(questions, trajectories, scores | own, weights, config.rewards.select)
    questions_of = {key: outline.question_id for key, outline in trajectories.outlines.items()}
    PlainConsole().print(whatif_table(now, then, agreement_rows(scores, own, questions_of, config.seed)))


def _load_trajectories(
    questions: Sequence[Question], round_folder: RoundFolder, options: argparse.Namespace
) -> Trajectories:
    store = TrajectoryStore(round_folder.trajectories)
    sampled, planned = store.open(), store.keys()
    command = _command("sample", options)
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


def _command(stage: str, options: argparse.Namespace) -> str:
    return shell_line(["ratchet", stage, *config_words(options), "--round", str(options.round)])
