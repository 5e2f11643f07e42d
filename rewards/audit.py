"""The audit of a round: a second opinion on a sample of its trajectories, which selection does not use
(`rewards.audit`). report/audit.py compares it with the reward, round by round."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.core.config import Config
from ratchet.core.records import Question, content_key
from ratchet.core.runfolder import RoundFolder
from ratchet.core.selection import Audit, Audited, Selection
from ratchet.rewards.reward import judged
from ratchet.rewards.scoring import Scorer, unfinished
from ratchet.rewards.selection import strict_reward
from ratchet.sampling.trajectories import Trajectories


def audit_round(
    config: Config,
    count: int,
    folder: RoundFolder,
    selection: Selection,
    questions: Sequence[Question],
    trajectories: Trajectories,
) -> tuple[Audit, int]:
    """(the audit of `count` questions of the round, how many of its scores are unfinished). `config`: the run's, with
    the rewards of its audit."""
    rewards = config.rewards
    sampled, kept = draw(selection, count, config.seed)
    by_id, drawn = {one.id: one for one in questions}, dict.fromkeys([*sampled.values(), *kept.values()])
    with Scorer(config) as scorer:
        scores = scorer.score(questions, trajectories.only(drawn), rewards.weights, folder.audit_scores)
    earned = {key: value for choice in selection.questions for key, value in choice.rewards.items()}
    keep = rewards.select.keep_status

    def audited(question: str, key: str) -> Audited:
        opinion = strict_reward(by_id[question], trajectories.outlines[key], scores, rewards.weights, keep)
        return Audited(trajectory=key, reward=earned[key], audit=opinion)

    audit = Audit(
        weights=rewards.weights,
        judge=rewards.judge if judged(rewards.weights) else "",
        sampled={question: audited(question, key) for question, key in sampled.items()},
        kept={question: audited(question, key) for question, key in kept.items()},
    )
    return audit, len(unfinished(scores))


def draw(selection: Selection, count: int, seed: int) -> tuple[dict[str, str], dict[str, str]]:
    """By the ids of `count` questions, the keys of (a trajectory of those that have a reward, one that was kept).

    Each round draws the same questions, so that rounds are compared question by question.
    """
    ranked = sorted(selection.questions, key=lambda choice: content_key("audit", seed, choice.question_id))
    sampled, kept = {}, {}
    for choice in ranked[:count]:
        rewarded = [key for key, reward in choice.rewards.items() if reward is not None]
        if rewarded:
            sampled[choice.question_id] = min(rewarded, key=lambda key: content_key("audit", seed, key))
        if choice.kept:
            kept[choice.question_id] = choice.kept[0]
    return sampled, kept
