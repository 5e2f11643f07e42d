"""Which of a training's evaluated adapters becomes the round's: the one with the best mean reward on dev.

mRAG (Salemi et al. 2025, arXiv 2506.10844, D.2) evaluates every 500 steps and keeps the checkpoint that does best on
the test set. Here dev chooses, and test is left for the final measurement. The reward of a question is that of
selection (`rewards.selection.strict_reward`), the mean over its samples; a candidate is compared on the questions that
have a reward from every candidate.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ratchet.core.config import Config, RewardsConfig
from ratchet.core.errors import UserError
from ratchet.core.files import write_json
from ratchet.core.records import Question
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.evaluation.arm_folders import arm_store, question_set
from ratchet.evaluation.arms import ArmPlan, check_leaks, open_arm
from ratchet.evaluation.arms import sample_arms as sample_missing
from ratchet.evaluation.question_sets import QuestionSet
from ratchet.rewards.reward import Ended
from ratchet.rewards.selection import Scores, strict_reward
from ratchet.rounds.promoted import SPLIT
from ratchet.rounds.records import AdapterChoice, Candidate
from ratchet.sampling.pool import policy_name
from ratchet.training.adapter import publish, read_facts
from ratchet.training.checkpoints import EvaluatedAdapters, read_evaluation


def candidate_arms(config: Config, folder: RoundFolder) -> dict[int, ArmPlan]:
    """The arm on dev of every evaluated adapter, by step. Raises UserError where nothing was trained for a choice."""
    adapters = EvaluatedAdapters(folder.training).all()
    if read_facts(folder.candidate) is None or not adapters:
        raise UserError(
            f"{folder.candidate}: there is nothing to choose from; train with training.choose_by=reward first "
            "(ratchet train)"
        )
    asked = question_set(config, SPLIT)
    return {step: _arm(config, folder, asked, step, path) for step, path in adapters.items()}


def _arm(config: Config, folder: RoundFolder, asked: QuestionSet, step: int, adapter: Path) -> ArmPlan:
    policy, system = policy_name(adapter), config.system
    store = arm_store(config, asked.name, system, policy)
    # One adapter after the other, as a server holds only a few.
    return ArmPlan(f"step {step}", system, asked, adapter, policy, store, trained_on=folder.candidate, group=step)


def sample_arms(config: Config, number: int) -> None:
    """Run every candidate on dev, and score nothing: before the judge's server takes the agents' place."""
    arms = candidate_arms(config, RunFolder(config.folder).round(number)).values()
    check_leaks(config.questions.leakage, arms)
    sample_missing(config, arms, f"choose among {len(arms)} adapter(s) on {SPLIT}")


def choose(config: Config, number: int, training_questions: dict[str, Any], sampled: bool = False) -> AdapterChoice:
    """Score every candidate on dev, record the choice, and put the chosen adapter in the round's place.

    `training_questions`: their digests, which lie beside the adapter; `sampled`: the arms were run before
    (`sample_arms`), and no agent's model is opened.
    """
    from ratchet.rewards.scoring import Scorer, unfinished  # late: sampling needs no judge

    folder = RunFolder(config.folder).round(number)
    if not sampled:
        sample_arms(config, number)
    weights = config.rewards.weights
    names = [name for name, weight in weights.items() if weight]
    arms = candidate_arms(config, folder)
    rewards: dict[int, dict[str, float]] = {}
    with Scorer(config) as scorer:
        for step, arm in arms.items():
            trajectories = open_arm(arm.store)
            scores = scorer.score(arm.asked.questions, trajectories, names, arm.scores)
            if left := unfinished(scores):
                raise UserError(
                    f"{len(left)} scores are unfinished because the judge was not available; nothing was chosen. Run "
                    "the same command again."
                )
            rewards[step] = dev_rewards(config.rewards, arm.asked.questions, trajectories.outlines.values(), scores)
    choice = best_candidate(number, folder, rewards, {step: arm.policy for step, arm in arms.items()}, weights)
    _publish(folder, choice, training_questions)
    return choice


def dev_rewards(
    rewards: RewardsConfig, questions: Sequence[Question], trajectories: Iterable[Ended], scores: Scores
) -> dict[str, float]:
    """By question, the mean reward of its samples that have one."""
    by_id = {question.id: question for question in questions}
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        question = by_id[trajectory.question_id]
        value = strict_reward(question, trajectory, scores, rewards.weights, rewards.select.keep_status)
        if value is not None:
            values.setdefault(question.id, []).append(value)
    return {question: fmean(of_question) for question, of_question in values.items()}


def best_candidate(
    number: int,
    folder: RoundFolder,
    rewards: Mapping[int, Mapping[str, float]],
    digests: Mapping[int, str],
    weights: Mapping[str, float],
) -> AdapterChoice:
    """The choice by the candidates' rewards on the questions that all of them have. UserError where there are none."""
    shared = set.intersection(*(set(by_question) for by_question in rewards.values()))
    if not shared:
        raise UserError(
            "no question of dev has a reward from every adapter, so no adapter can be chosen: change "
            "rewards.weights to scores that dev's questions allow, or set training.choose_by=held_out_loss"
        )
    means = {step: fmean(by_question[name] for name in sorted(shared)) for step, by_question in rewards.items()}
    best = max(means, key=lambda step: (round(means[step], 12), -step))
    adapters = EvaluatedAdapters(folder.training).all()
    candidates = tuple(
        Candidate(
            step=step, digest=digests[step], dev_loss=read_evaluation(adapters[step])["dev_loss"], reward=means[step]
        )
        for step in sorted(means)
    )
    with_loss = [candidate for candidate in candidates if candidate.dev_loss is not None]
    if with_loss:
        other = min(with_loss, key=lambda candidate: (candidate.dev_loss, candidate.step)).step
        stand_in = f"the held-out loss would have chosen step {other}"
    else:
        other, stand_in = max(means), f"without held-out rows training would have kept step {max(means)}"
    reason = (
        f"The adapter after step {best} has the best mean reward of {len(means)} on {len(shared)} questions of dev, "
        f"{means[best]:.3f}; {stand_in}, with {means[other]:.3f}."
    )
    return AdapterChoice(
        round=number,
        step=best,
        digest=digests[best],
        questions=len(shared),
        weights=dict(weights),
        candidates=candidates,
        reason=reason,
    )


def _publish(folder: RoundFolder, choice: AdapterChoice, training_questions: dict[str, Any]) -> None:
    """Put the chosen adapter in the round's place, with the facts of its training, and record the choice."""
    facts = read_facts(folder.candidate)
    assert facts is not None, "checked by candidate_arms"
    chosen = next(candidate for candidate in choice.candidates if candidate.step == choice.step)
    facts |= {"step": chosen.step, "dev_loss": chosen.dev_loss, "chosen_by": choice.reason}
    if read_facts(folder.adapter) != facts:
        shutil.rmtree(folder.adapter, ignore_errors=True)  # the candidate keeps what it was made from
        source = EvaluatedAdapters(folder.training).all()[choice.step]
        publish(source, folder.adapter, facts, training_questions)
    write_json(folder.choice, choice.model_dump(mode="json"))
