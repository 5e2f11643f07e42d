"""Choosing the trajectories to train on (Salemi et al. 2025, arXiv 2506.10844, section 3.2).

The functions are pure: the same scores, weights and rule give the same choice.

A question's candidates are the trajectories that ended with a status of `rule.keep_status`, have an answer and have
every needed score (one with a weight above 0). A trajectory that ended otherwise, or without an answer, has the reward
0, and one that failed has none: it is sampled again. The best are kept, up to `rule.ties` when they tie. Among tied
trajectories the lowest sample numbers win, and one whose sampled tokens are all the same as a kept one's is skipped,
since training on it would only weigh that trajectory twice, unless `rule.similarity` is null.

Beside the kept ones, a question's choice names the candidates that an objective over good and bad trajectories may
learn from (`training.examples`): all of them that are not the same as another, up to `rule.max_trajectories`.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, zip_longest

from ratchet.config import SelectConfig
from ratchet.errors import UserError
from ratchet.records import Cause, Question, QuestionChoice, Score, Selection, Trajectory, content_key
from rewards.reward import has_answer, load_reward, strict_value

TIE = 1e-9
"""Rewards closer than this count as equal: they differ only by rounding."""

GRAM = 4
"""Tokens of the sequences by which the similarity of trajectories is measured."""

Scores = Mapping[tuple[str, str], Score]
Weights = Mapping[str, float]


def select(
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    scores: Scores,
    weights: Weights,
    rule: SelectConfig,
) -> Selection:
    """The kept trajectories of every question, with the reason. Raises UserError for weights that give no mean."""
    check_weights(weights)
    by_question: dict[str, dict[str, Trajectory]] = {question.id: {} for question in questions}
    for trajectory in trajectories:
        by_question[trajectory.question_id][trajectory.key] = trajectory
    choices = [
        _choose(question, sorted(found.values(), key=lambda t: (t.sample, t.key)), scores, weights, rule)
        for question in questions
        for found in [by_question[question.id]]
    ]
    return Selection(
        weights=dict(weights),
        rule=rule.model_dump(mode="json"),
        questions=tuple(_balance(questions, choices, rule) if rule.balance else choices),
    )


def select_at_random(selection: Selection, trajectories: Iterable[Trajectory], seed: int) -> Selection:
    """A control for a selection: of every question as many trajectories as it kept, chosen at random, whatever their
    reward, from those that ended as its rule asks for and have an answer. The choice depends on the seed and not on the
    order of `trajectories`."""
    keep_status = SelectConfig.model_validate(selection.rule).keep_status
    pool: dict[str, set[str]] = {}
    for trajectory in trajectories:
        if trajectory.status in keep_status and has_answer(trajectory):
            pool.setdefault(trajectory.question_id, set()).add(trajectory.key)

    def chosen(choice: QuestionChoice) -> QuestionChoice:
        if not choice.kept:
            return choice
        found = sorted(pool.get(choice.question_id, ()), key=lambda key: content_key("control", seed, key))
        kept = tuple(found[: len(choice.kept)])
        reason = f"kept: {len(kept)} of {len(found)} well-formed trajectories, chosen at random"
        return choice.model_copy(update={"kept": kept, "candidates": (), "reason": reason})

    rule = {"control": "random", "seed": seed, "keep_status": list(keep_status)}
    return selection.model_copy(update={"rule": rule, "questions": tuple(map(chosen, selection.questions))})


def check_weights(weights: Weights) -> None:
    """Raises UserError for weights that are negative, not finite, or all 0."""
    bad = {name: weight for name, weight in weights.items() if not (math.isfinite(weight) and weight >= 0)}
    if bad or not any(weights.values()):
        shown = ", ".join(f"{name}={weight}" for name, weight in (bad or dict(weights)).items()) or "none given"
        raise UserError(f"rewards.weights: {shown}; weights are numbers from 0 up, one of them above 0")


def parse_weights(text: str, option: str) -> dict[str, float]:
    """'correctness=2,faithfulness=1' as a mapping. `option`: what it was given to, for errors. Raises UserError."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        try:
            weight = float(value)
        except ValueError:
            sign = ""
        if not sign:
            raise UserError(f"{option} {text}: expected name=number,name=number, got {part!r}")
        load_reward(name, option)
        weights[name] = weight
    check_weights(weights)
    return weights


def reward(key: str, scores: Scores, weights: Weights) -> float | None:
    """Weighted mean of a trajectory's scores, None when a needed one is null or missing."""
    total = 0.0
    for name, weight in weights.items():
        if not weight:
            continue
        score = scores.get((key, name))
        if score is None or score.value is None:
            return None
        total += weight * score.value
    return total / sum(weights.values())


def strict_reward(
    question: Question,
    trajectory: Trajectory,
    scores: Scores,
    weights: Weights,
    keep_status: Collection[str],
) -> float | None:
    """The reward that selection uses (`rewards.reward.strict_value`); None where a needed score is missing."""
    needed = [name for name, weight in weights.items() if weight]
    if any((trajectory.key, name) not in scores for name in needed):
        return None
    return strict_value(reward(trajectory.key, scores, weights), needed, question, trajectory, keep_status)


def _lacking(key: str, scores: Scores, weights: Weights) -> list[str]:
    """Needed scores that are null or missing."""
    return [
        name
        for name, weight in weights.items()
        if weight and ((score := scores.get((key, name))) is None or score.value is None)
    ]


def _choose(
    question: Question, trajectories: Sequence[Trajectory], scores: Scores, weights: Weights, rule: SelectConfig
) -> QuestionChoice:
    rewards = {
        t.key: None if t.status == "failed" else strict_reward(question, t, scores, weights, rule.keep_status)
        for t in trajectories
    }
    out: Counter[str] = Counter()
    lacks_scores = False
    candidates: list[tuple[float, Trajectory]] = []
    for trajectory in trajectories:
        value = rewards[trajectory.key]
        if trajectory.status not in rule.keep_status:
            out[trajectory.status.replace("_", " ")] += 1
        elif not has_answer(trajectory):
            out["no answer"] += 1
        elif value is None:
            lacks_scores = True
            out[f"without {' and '.join(_lacking(trajectory.key, scores, weights))}"] += 1
        else:
            candidates.append((value, trajectory))
    left_out = ", ".join(f"{count} {what}" for what, count in out.items())
    cause: Cause
    known = [value for value in rewards.values() if value is not None]
    hinted = tuple(t.key for t in trajectories if t.hint)
    unaided = [value for key, value in rewards.items() if value is not None and key not in hinted] or known
    if candidates:
        cause, numbers = _cause([value for value, _ in candidates], known, rule)
        if cause == "kept" and (numbers := _low_scores([one.key for _, one in candidates], scores, rule)):
            cause = "score_too_low"
    elif lacks_scores:
        cause, numbers = "missing_scores", left_out
    else:
        cause, numbers = "none_finished" if trajectories else "no_trajectory", left_out
    kept: list[Trajectory] = []
    learnt: tuple[str, ...] = ()
    if cause == "kept":
        kept, reason = _keep(candidates, len(trajectories), left_out, rule)
        learnt = _learnt(candidates, kept, rule)
    else:
        reason = f"dropped: {cause_text(cause, rule)}" + (f" ({numbers})" if numbers else "")
    return QuestionChoice(
        question_id=question.id,
        kept=tuple(t.key for t in kept),
        cause=cause,
        reason=reason,
        rewards=rewards,
        candidates=learnt,
        weight=1 - _success_rate(unaided, rule) if kept and rule.difficulty == "failure_rate" else 1.0,
        hinted=hinted,
    )


def _success_rate(rewards: Sequence[float], rule: SelectConfig) -> float:
    """The share of a question's rewards, at least one, that count as a success."""
    return sum(value >= rule.success - TIE for value in rewards) / len(rewards)


def _learnt(
    candidates: Sequence[tuple[float, Trajectory]], kept: Sequence[Trajectory], rule: SelectConfig
) -> tuple[str, ...]:
    """Keys of the candidates that count, in the order of their samples: the kept ones, and of the others those that
    resemble no better one; with a limit, the worst and the best of these by turns."""
    ranked = [t for _, t in sorted(candidates, key=lambda item: -item[0])]
    others = _distinct([*kept, *(t for t in ranked if t not in kept)], rule.similarity)[len(kept) :]
    half = len(others) // 2
    ends = filter(None, chain.from_iterable(zip_longest(reversed(others[half:]), others[:half])))
    chosen = {t.key for t in [*kept, *ends][: rule.max_trajectories]}
    return tuple(t.key for _, t in candidates if t.key in chosen)


def _balance(
    questions: Sequence[Question], choices: Sequence[QuestionChoice], rule: SelectConfig
) -> list[QuestionChoice]:
    """As many kept questions of every group as the smallest has; which ones is decided by a hash of their ids."""
    groups: dict[tuple[str | None, ...], list[str]] = {}
    for question, choice in zip(questions, choices, strict=True):
        if choice.kept:
            groups.setdefault(tuple(getattr(question, field) for field in rule.balance), []).append(question.id)
    size = min(map(len, groups.values()), default=0)
    stays = {
        one
        for group in groups.values()
        for one in sorted(group, key=lambda i: hashlib.sha256(i.encode()).digest())[:size]
    }
    reason = f"dropped: {cause_text('group_full', rule)} ({size} of each are kept)"
    dropped = {"kept": (), "candidates": (), "weight": 1.0, "cause": "group_full", "reason": reason}
    return [
        choice.model_copy(update=dropped) if choice.kept and choice.question_id not in stays else choice
        for choice in choices
    ]


def cause_text(cause: Cause, rule: SelectConfig) -> str:
    """The cause in words, without the numbers of one question."""
    texts: dict[Cause, str] = {
        "kept": "kept",
        "no_trajectory": "no trajectory was sampled",
        "none_finished": f"no {' or '.join(rule.keep_status).replace('_', ' ')} trajectory",
        "missing_scores": "no candidate has all its scores",
        "reward_too_low": f"best reward is not above {rule.min_reward}",
        "score_too_low": "in some score no candidate is above its rewards.select.min_scores",
        "all_equal": "all rewards are equal",
        "not_mixed": f"not both successes and failures (success: a reward of {rule.success:g} or more)",
        "group_full": f"enough other questions of its {' and '.join(rule.balance)}",
    }
    return texts[cause]


def _cause(rewards: Sequence[float], known: Sequence[float], rule: SelectConfig) -> tuple[Cause, str]:
    """(why a question with candidates of these rewards is kept or dropped, the numbers behind it). `known`: of all its
    trajectories, those that did not finish among them."""
    best, lowest = max(rewards), min(rewards)
    if rule.min_reward is not None and best <= rule.min_reward + TIE:
        return "reward_too_low", f"best {best:.3f} of {len(rewards)}"
    if rule.drop_all_equal and len(rewards) > 1 and best - lowest <= TIE:
        return "all_equal", f"{len(rewards)} times {best:.3f}"
    if rule.only_mixed and (rate := _success_rate(known, rule)) in (0, 1):
        return "not_mixed", f"{rate * len(known):.0f} of {len(known)} succeeded"
    return "kept", ""


def _low_scores(keys: Sequence[str], scores: Scores, rule: SelectConfig) -> str:
    """The scores in which no candidate is above its `rule.min_scores`, with the best of each; empty where there is
    none."""
    low = []
    for name, least in rule.min_scores.items():
        found = (scores.get((key, name)) for key in keys)
        known = [score.value for score in found if score is not None and score.value is not None]
        if not known or max(known) <= least + TIE:
            low.append(f"best {name} {max(known):.3f}" if known else f"no {name}")
    return ", ".join(low)


def _keep(
    candidates: list[tuple[float, Trajectory]], sampled: int, left_out: str, rule: SelectConfig
) -> tuple[list[Trajectory], str]:
    """(the trajectories to keep, the reason in one line)."""
    best = max(value for value, _ in candidates)
    tied = [trajectory for value, trajectory in candidates if value >= best - TIE]
    distinct = _distinct(tied, rule.similarity)
    limit = rule.max_kept
    kept = distinct[:limit]
    notes = []
    if len(tied) > len(distinct):
        notes.append(f"{len(tied) - len(distinct)} the same as another")
    if len(distinct) > len(kept):
        notes.append(f"at most {limit} kept")
    how = f"{len(tied)} tied at {best:.3f}" if len(tied) > 1 else f"best at {best:.3f}"
    detail = "; ".join(note for note in [", ".join(notes), left_out] if note)
    return kept, f"kept {len(kept)} of {sampled}: {how}" + (f" ({detail})" if detail else "")


Actions = tuple[tuple[str, tuple[int | str, ...]], ...]
"""What was sampled of a trajectory: (role, ids, or characters of a dialogue that is text) of each conversation."""


def _distinct(trajectories: Sequence[Trajectory], similarity: float | None) -> list[Trajectory]:
    """The trajectories without those whose actions are the same as an earlier one's, or as similar as that; one without
    sampled tokens stays. None: all."""
    if similarity is None:
        return list(trajectories)
    seen: list[Actions] = []
    found = []
    for trajectory in trajectories:
        actions = _actions(trajectory)
        if any(resemble(actions, other, similarity) for other in seen):
            continue
        if any(ids for _, ids in actions):
            seen.append(actions)
        found.append(trajectory)
    return found


def _actions(trajectory: Trajectory) -> Actions:
    return tuple(
        (
            conversation.role,
            tuple(
                i for span in conversation.spans if span.sampled for i in conversation.content[span.start : span.end]
            ),
        )
        for conversation in trajectory.conversations
    )


def resemble(one: Actions, other: Actions, similarity: float) -> bool:
    """Whether the Jaccard index of their sequences of `GRAM` tokens, each under its role, is at least `similarity`."""
    if similarity == 1 or one == other:
        return one == other
    mine, theirs = _grams(one), _grams(other)
    return len(mine & theirs) >= similarity * len(mine | theirs)


def _grams(actions: Actions) -> set[tuple[str, tuple[int | str, ...]]]:
    return {
        (role, ids[at : at + GRAM]) for role, ids in actions for at in range(max(len(ids) - GRAM + 1, min(len(ids), 1)))
    }
