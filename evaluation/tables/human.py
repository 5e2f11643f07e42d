"""`python -m evaluation agreement --human FILE`: score the pairs of answers that people compared, and print how well
each reward agrees with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from evaluation.formats import format_interval
from evaluation.measures.human import ASPECTS, HumanAgreement, Pair, human_agreement, people_agreement, read_pairs
from ratchet.config import Environment, RewardsConfig
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


@dataclass(frozen=True)
class _Scored:
    """A reward's difference of the two answers of each pair, and why it has none where it has none at all."""

    name: str
    differences: Sequence[float | None]
    reason: str = ""


def print_human_agreement(
    file: Path,
    asked: Sequence[str],
    against: str,
    environment: Environment,
    rewards: RewardsConfig | None,
    resamples: int,
) -> None:
    """Print the agreement of rewards with the people whose labels `file` has, best first.

    `asked`: names of rewards, or weights such as 'f1=1,correctness=2' for a weighted mean; empty: all rewards without a
    judge, and those of `rewards`. `against`: the reward that every other is compared with. The scores are stored in the
    environment's run folder, and a judge's are resumed. `rewards`: None without a config, and then no judge is there.
    Raises UserError.
    """
    pairs = read_pairs(file)
    if no_text := sum(pair.question.reference is None for pair in pairs):
        raise UserError(f"{file}: {no_text} of {len(pairs)} pairs have an empty gt_answer, to which rewards compare")
    named = {text: _weights(text, "--reward") for text in asked} or _default(rewards.weights if rewards else {})
    named = {against: _weights(against, "--against")} | named
    names = list(dict.fromkeys(name for weights in named.values() for name, weight in weights.items() if weight))
    if rewards is None:
        if by_judge := judged(names):
            raise UserError(
                f"{' and '.join(by_judge)}: a judge gives these scores; add --config with a config that has "
                "rewards.judge and that model under models"
            )
        rewards = RewardsConfig()
    judge_of(rewards, environment.models, names)
    nuggets, seed = RunFolder(environment.run).nuggets, environment.seed
    folder = environment.run / "human" / file_digest(file)[:12]
    with Scorer(rewards, environment.models, environment.embedder, seed, nuggets) as scorer:
        scores, left_out = _score(scorer, pairs, names, folder, bool(asked))
    scored = [_scored(text, weights, pairs, scores, left_out) for text, weights in named.items()]
    scored += [_plain(name, rule, pairs) for name, rule in PLAIN.items()]
    base, *_ = (each.differences for each in scored if each.name == against)
    agreements = {
        each.name: human_agreement(pairs, each.differences, resamples, seed, None if each.name == against else base)
        for each in scored
    }
    print_table(agreement_table(pairs, agreements, people_agreement(pairs, resamples, seed), against))
    for each in scored:
        if agreements[each.name].by_aspect["overall"].mean is None:
            print(f"{each.name}: {each.reason or 'it is the same for both answers of every pair'}")


def _default(weights: Weights) -> dict[str, Weights]:
    """Every reward without a judge, and a config's reward with the scores that it is made of."""
    rules: dict[str, Weights] = {name: {name: 1.0} for name in known_rewards() if not load_reward(name).needs_judge}
    weights = {str(name): weight for name, weight in weights.items() if weight}
    whole = {",".join(f"{name}={weight:g}" for name, weight in weights.items()): weights} if len(weights) > 1 else {}
    return rules | {name: {name: 1.0} for name in weights} | whole


def _weights(text: str, option: str) -> Weights:
    if "=" in text:
        return parse_weights(text, option)
    load_reward(text, option)
    return {text: 1.0}


def _score(
    scorer: Scorer, pairs: Sequence[Pair], names: Sequence[str], folder: Path, required: bool
) -> tuple[dict[tuple[str, str], Score], dict[str, str]]:
    """(All scores, and the rewards that could not be computed with the reason, unless they are `required`)."""
    questions = list({pair.question.id: pair.question for pair in pairs}.values())
    trajectories = list({answer.key: answer for pair in pairs for answer in pair.answers}.values())
    scores: dict[tuple[str, str], Score] = {}
    left_out: dict[str, str] = {}
    by_judge = judged(names)
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
    if not reason and all(each is None for each in differences):
        reasons = (scores[answer.key, name].reason for pair in pairs for answer in pair.answers for name in weights)
        reason = next(filter(None, reasons), "")
    return _Scored(text, differences, reason)


def _plain(name: str, rule: Callable[[Question, Trajectory], float], pairs: Sequence[Pair]) -> _Scored:
    values = [tuple(rule(pair.question, answer) for answer in pair.answers) for pair in pairs]
    return _Scored(name, [second - first for first, second in values])


def agreement_table(
    pairs: Sequence[Pair], agreements: Mapping[str, HumanAgreement], people: HumanAgreement | None, against: str
) -> Table:
    """The rewards of `agreements`, the best first, under the people's agreement with each other."""
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
    ordered = sorted(agreements.items(), key=lambda item: -(item[1].by_aspect["overall"].mean or 0))
    rows = [("people, one with another", people)] if people else []
    for name, agreement in [*rows, *ordered]:
        *aspects, overall = (agreement.by_aspect[aspect] for aspect in ASPECTS)
        if overall.mean is None:
            continue
        compared = agreement.against
        less = (
            "" if compared is None or compared.mean is None else f"{compared.mean:+.1f} {format_interval(compared, 1)}"
        )
        ranked = "-" if agreement.spearman is None else f"{agreement.spearman:.1f}"
        cells = ["-" if aspect.mean is None else f"{aspect.mean:.1f}" for aspect in aspects]
        cells += [f"{overall.mean:.1f} {format_interval(overall, 1)}", ranked, less, str(agreement.nulls)]
        table.add_row(escape(name), *cells)
    return table
