"""The choice of a round's adapter among those of its training, and the decision whether it replaces its parent.

A training with `choose_by: reward` leaves the adapters that it evaluated, and the one with the best mean reward on dev
becomes the round's. mRAG (Salemi et al. 2025, arXiv 2506.10844, D.2) evaluates every 500 steps and keeps the checkpoint
that does best on the test set; here dev chooses, and test is left for the final measurement. The reward of a question
is that of selection (`rewards.selection.strict_reward`), the mean over its samples.

The parent is the adapter that the round sampled with, at first the base model. What was decided stays decided: the next
rounds are built on it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ratchet.core.config import Config, RewardsConfig
from ratchet.core.errors import UserError
from ratchet.core.files import write_record
from ratchet.core.records import Question
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.evaluation.arms import ArmPlan, arm_store, check_leaks, open_arm, question_set, results_path, sample_arms
from ratchet.evaluation.comparisons import choose, decide, measure_difference, too_few_questions
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.measures.statistics import paired
from ratchet.evaluation.results import BASE, PARENT, TRAINED
from ratchet.evaluation.round_arms import evaluate, run_arms
from ratchet.inference.adapters import adapter_digest
from ratchet.rewards.reward import Ended
from ratchet.rewards.selection import Scores, strict_reward
from ratchet.rounds.records import (
    SPLIT,
    AdapterChoice,
    Candidate,
    Promotion,
    kept_any,
    last_promoted,
    read_promotion,
)
from ratchet.sampling.pool import policy_name
from ratchet.training.adapter import publish, read_facts
from ratchet.training.checkpoints import EvaluatedAdapters, read_evaluation

# The choice among the adapters of a training


def candidate_arms(config: Config, folder: RoundFolder) -> dict[int, ArmPlan]:
    """The arm on dev of every evaluated adapter, by step. Raises UserError where nothing was trained for a choice."""
    adapters = EvaluatedAdapters(folder.training).all()
    if read_facts(folder.candidate) is None or not adapters:
        raise UserError(
            f"{folder.candidate}: there is nothing to choose from; train with training.choose_by=reward first "
            "(ratchet train)"
        )
    asked, system, arms = question_set(config, SPLIT), config.system, {}
    for step, path in sorted(adapters.items()):
        policy = policy_name(path)
        place = path, policy, arm_store(config, asked.name, system, policy)
        # One adapter after the other, as a server holds only a few.
        arms[step] = ArmPlan(f"step {step}", system, asked, *place, trained_on=folder.candidate, group=step)
    return arms


def sample_candidates(config: Config, number: int) -> None:
    """Run every candidate on dev, and score nothing: before the judge's server takes the agents' place."""
    arms = candidate_arms(config, RunFolder(config.folder).round(number)).values()
    check_leaks(config.questions.leakage, arms)
    sample_arms(config, arms, f"choose among {len(arms)} adapter(s) on {SPLIT}")


def choose_adapter(
    config: Config, number: int, training_questions: dict[str, Any], sampled: bool = False
) -> AdapterChoice:
    """Score every candidate on dev, record the choice, and put the chosen adapter in the round's place.

    `training_questions`: their digests, which lie beside the adapter; `sampled`: the arms were run before
    (`sample_candidates`), and no agent's model is opened.
    """
    from ratchet.rewards.scoring import Scorer, unfinished  # late: sampling needs no judge

    folder = RunFolder(config.folder).round(number)
    if not sampled:
        sample_candidates(config, number)
    names = [name for name, weight in config.rewards.weights.items() if weight]
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
    choice = best_candidate(folder, rewards, {step: arm.policy for step, arm in arms.items()}, config.rewards.weights)
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
    folder: RoundFolder,
    rewards: Mapping[int, Mapping[str, float]],
    digests: Mapping[int, str],
    weights: Mapping[str, float],
) -> AdapterChoice:
    """The choice by the candidates' rewards, of equal ones the earliest. UserError where no question has all."""
    chosen = choose({step: [by_question] for step, by_question in rewards.items()})
    if chosen is None:
        raise UserError(
            "no question of dev has a reward from every adapter, so no adapter can be chosen: change "
            "rewards.weights to scores that dev's questions allow, or set training.choose_by=held_out_loss"
        )
    best, means = chosen.best, chosen.means
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
        f"The adapter after step {best} has the best mean reward of {len(means)} on {chosen.questions} questions of "
        f"dev, {means[best]:.3f}; {stand_in}, with {means[other]:.3f}."
    )
    return AdapterChoice(
        round=folder.number,
        step=best,
        digest=digests[best],
        questions=chosen.questions,
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
    write_record(folder.choice, choice)


# Promotion


def promote(config: Config, number: int, sampled: bool = False) -> Promotion:
    """Evaluate base, parent and candidate on dev where that is not done, and decide; or return what was decided.

    `sampled`: the arms were run before (`sample_promotion`), and no agent's model is opened.
    """
    run, level = RunFolder(config.folder), config.rounds.level
    folder, parent = run.round(number), parent_adapter(run, number)
    parent_digest = adapter_digest(parent) if parent else BASE
    if not kept_any(folder):
        promotion = Promotion(
            round=number,
            candidate="",
            parent=parent_digest,
            split=SPLIT,
            measure="",
            base=None,
            difference=Difference(n=0),
            promoted=False,
            reason="No candidate: nothing that the round sampled was worth keeping.",
        )
        write_record(folder.promotion, promotion)
        return promotion
    candidate = adapter_digest(folder.adapter)
    decided, path = read_promotion(folder), results_path(folder, SPLIT)
    if decided and (decided.candidate, decided.parent) == (candidate, parent_digest) and path.exists():
        return decided
    [results] = evaluate(without_baselines(config), folder, [SPLIT], folder.adapter, parent, sampled)
    before, after = results.arm(PARENT if parent else BASE), results.arm(TRAINED)
    assert before is not None and after is not None
    difference = measure_difference(before, after, results.primary, config.seed)
    promoted, reason = decide(difference, level, results.primary)
    base = results.arms[0].measures.get(results.primary)
    pairs = paired(before.by_question(results.primary), after.by_question(results.primary))
    promotion = Promotion(
        round=number,
        candidate=candidate,
        parent=parent_digest,
        split=SPLIT,
        measure=results.primary,
        base=base.mean if base else None,
        difference=difference,
        promoted=promoted,
        reason=reason,
        warning=too_few_questions([y - x for x, y in zip(*pairs, strict=True)], level),
    )
    write_record(folder.promotion, promotion)
    return promotion


def sample_promotion(config: Config, number: int) -> None:
    """Run base, parent and candidate on dev, and score nothing: before the judge's server takes the agents' place."""
    run = RunFolder(config.folder)
    folder = run.round(number)
    run_arms(without_baselines(config), folder, [SPLIT], folder.adapter, parent_adapter(run, number))


def parent_adapter(run: RunFolder, number: int) -> Path | None:
    """The adapter that a round samples with; None: the base model."""
    origin = last_promoted(run, before=number)
    return run.round(origin).adapter if origin else None


def without_baselines(config: Config) -> Config:
    """The settings without baselines and trained controls, which take no part in choosing. The base model sampled
    again stays: it shows how many questions change by chance, and all rounds share it."""
    controls = tuple(name for name in config.evaluation.controls if name == "base-again")
    evaluation = config.evaluation.model_copy(update={"baselines": {}, "skip": {}, "controls": controls})
    return config.model_copy(update={"evaluation": evaluation})
