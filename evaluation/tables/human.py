"""`python -m evaluation agreement --human FILE`: score the pairs of answers that people compared, and print how well
each reward agrees with them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from evaluation.formats import format_interval
from evaluation.measures.human import ASPECTS, HumanAgreement, Pair, human_agreement, people_agreement, read_pairs
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.records import Question, Score, Trajectory
from ratchet.runfolder import RunFolder, file_digest
from ratchet.tables import print_table
from rewards.reward import judge_of, judged, known_rewards, load_reward
from rewards.rules import references, token_precision, token_recall
from rewards.scoring import Scorer, unfinished
from rewards.selection import parse_weights, reward

PLAIN: Mapping[str, Callable[[Question, Trajectory], float]] = {
    "token precision": lambda question, trajectory: token_precision(trajectory.answer, references(question)),
    "token recall": lambda question, trajectory: token_recall(trajectory.answer, references(question)),
    "answer length, words": lambda question, trajectory: float(len(trajectory.answer.split())),
}
"""What every reward should be better than, and what its agreement may come from."""
Weights = Mapping[str, float]
Differences = list[float | None]


@dataclass(frozen=True)
class _Scored:
    """A reward's difference of the two answers of each pair, and why it has none where it has none at all."""

    name: str
    differences: Differences
    reason: str = ""


def print_human_agreement(config: Config | None, file: Path, asked: Sequence[str], against: str) -> None:
    """Print the agreement of rewards with the people whose labels `file` has, best first.

    `asked`: names of rewards, or weights such as 'f1=1,correctness=2' for a weighted mean; empty: all rewards without a
    judge, and the config's. `against`: the reward that every other is compared with. Without a config, nothing is
    stored; with one, the scores are stored in its run folder, and a judge's are resumed. Raises UserError.
    """
    pairs = read_pairs(file)
    if no_text := sum(pair.question.reference is None for pair in pairs):
        raise UserError(f"{file}: {no_text} of {len(pairs)} pairs have an empty gt_answer, to which rewards compare")
    named = {text: _weights(text, "--reward") for text in asked} or _default(config)
    named = {against: _weights(against, "--against")} | named
    names = list(dict.fromkeys(name for weights in named.values() for name, weight in weights.items() if weight))
    if config is None and (by_judge := judged(names)):
        raise UserError(
            f"{' and '.join(by_judge)}: a judge gives these scores; add --config with a config that has rewards.judge "
            "and that model under models"
        )
    with contextlib.ExitStack() as stack:
        if config is None:
            run = stack.enter_context(tempfile.TemporaryDirectory())
            config = Config(run=run)
        judge_of(config.rewards, config.models, names)
        scores, left_out = _score(config, pairs, names, config.folder / "human" / file_digest(file)[:12], bool(asked))
    scored = [_scored(text, weights, pairs, scores, left_out) for text, weights in named.items()]
    scored += [_plain(name, rule, pairs) for name, rule in PLAIN.items()]
    resamples, seed = config.evaluation.resamples, config.seed
    base, *_ = (one.differences for one in scored if one.name == against)
    found = {
        one.name: human_agreement(pairs, one.differences, resamples, seed, None if one.name == against else base)
        for one in scored
    }
    print_table(agreement_table(pairs, found, people_agreement(pairs, resamples, seed), against))
    for one in scored:
        if found[one.name].by_aspect["overall"].mean is None:
            print(f"{one.name}: {one.reason or 'it is the same for both answers of every pair'}")


def _default(config: Config | None) -> dict[str, Weights]:
    """Every reward without a judge, and the config's reward with the scores that it is made of."""
    found: dict[str, Weights] = {name: {name: 1.0} for name in known_rewards() if not load_reward(name).needs_judge}
    if config is not None:
        weights = {str(name): weight for name, weight in config.rewards.weights.items() if weight}
        found |= {name: {name: 1.0} for name in weights}
        if len(weights) > 1:
            found[",".join(f"{name}={weight:g}" for name, weight in weights.items())] = weights
    return found


def _weights(text: str, option: str) -> Weights:
    if "=" in text:
        return parse_weights(text, option)
    load_reward(text, option)
    return {text: 1.0}


def _score(
    config: Config, pairs: Sequence[Pair], names: Sequence[str], folder: Path, required: bool
) -> tuple[dict[tuple[str, str], Score], dict[str, str]]:
    """(All scores, and the rewards that could not be computed with the reason, unless they are `required`)."""
    questions = list({pair.question.id: pair.question for pair in pairs}.values())
    trajectories = list({answer.key: answer for pair in pairs for answer in pair.answers}.values())
    scores: dict[tuple[str, str], Score] = {}
    left_out: dict[str, str] = {}
    by_judge = judged(names)
    nuggets = RunFolder(config.folder).nuggets
    with Scorer(config.rewards, config.models, config.embedder, config.seed, nuggets) as scorer:
        for group in filter(None, [*([name] for name in names if name not in by_judge), by_judge]):
            try:
                scores |= scorer.score(questions, trajectories, group, folder)
            except UserError as error:
                # An embedder that is not installed should not hide the other rewards.
                if required or not all(load_reward(name).needs_embedder for name in group):
                    raise
                left_out |= dict.fromkeys(group, str(error))
    if left := unfinished(scores):
        raise UserError(
            f"{len(left)} scores are unfinished because the judge was not available; run the same command again to "
            "compute only these"
        )
    return scores, left_out


def _scored(
    text: str,
    weights: Weights,
    pairs: Sequence[Pair],
    scores: Mapping[tuple[str, str], Score],
    left_out: Mapping[str, str],
) -> _Scored:
    def difference(pair: Pair) -> float | None:
        first, second = (reward(answer.key, scores, weights) for answer in pair.answers)
        return None if first is None or second is None else second - first

    differences = [difference(pair) for pair in pairs]
    reason = next((left_out[name] for name in weights if name in left_out), "")
    if not reason and not any(one is not None for one in differences):
        reasons = (scores[answer.key, name].reason for pair in pairs for answer in pair.answers for name in weights)
        reason = next((one for one in reasons if one), "")
    return _Scored(text, differences, reason)


def _plain(name: str, rule: Callable[[Question, Trajectory], float], pairs: Sequence[Pair]) -> _Scored:
    values = [tuple(rule(pair.question, answer) for answer in pair.answers) for pair in pairs]
    return _Scored(name, [second - first for first, second in values])


def agreement_table(
    pairs: Sequence[Pair], found: Mapping[str, HumanAgreement], people: HumanAgreement | None, against: str
) -> Table:
    """The rewards of `found`, the best first, under the people's agreement with each other."""
    labels = sum(len(pair.labels) for pair in pairs)
    questions = len({pair.question.text for pair in pairs})
    table = Table(
        title=f"Agreement with people: {len(pairs)} pairs of answers to {questions} questions, {labels} labels",
        caption="Pearson's correlation x 100 of score differences with labels; 95% bootstrap intervals over\n"
        "questions. Spearman: Spearman's correlation of overall. null: pairs without a score, which are\n"
        "put at the median.",
    )
    table.add_column("reward", no_wrap=True)
    for heading in (*ASPECTS, "Spearman", f"less {against}", "null"):
        table.add_column(escape(heading), justify="right", no_wrap=True)
    ordered = sorted(found.items(), key=lambda item: -(item[1].by_aspect["overall"].mean or 0))
    rows = [("people, one with another", people)] if people else []
    for name, one in [*rows, *ordered]:
        overall = one.by_aspect["overall"]
        if overall.mean is None:
            continue
        cells = ["-" if (mean := one.by_aspect[aspect].mean) is None else f"{mean:.1f}" for aspect in ASPECTS[:-1]]
        compared = "" if one.against is None else f"{one.against.mean:+.1f} {format_interval(one.against, 1)}"
        ranked = "-" if one.spearman is None else f"{one.spearman:.1f}"
        pearsons = f"{overall.mean:.1f} {format_interval(overall, 1)}"
        table.add_row(escape(name), *cells, pearsons, ranked, compared, f"{one.nulls}")
    return table
