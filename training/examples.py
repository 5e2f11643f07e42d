"""What an objective learns from: for each trajectory or action its weight, its side and the example it is a part of.

`sft` learns from the kept trajectories alone. The other objectives (`training.objective`) learn from all candidates of
the questions that selection kept (`rewards.selection`), by the rewards that are stored in the selection:

- weighted: a trajectory weighs its reward less the mean reward of all attempts at its question, as in REINFORCE with
  a baseline (compared with learning from the positives alone by Xiong et al. 2025, arXiv 2504.11343).
- dpo: each kept trajectory is preferred to one of the worst (Rafailov et al. 2023, arXiv 2305.18290).
- kto: a trajectory above the mean reward of its question is desirable, one below it is not (Ethayarajh et al. 2024,
  arXiv 2402.01306).

With `preference.level: action` the examples are actions that follow the same tokens of a conversation. An action's
reward is the mean reward of all attempts that took it. Process-level preferences of agents that search are from Xiong
et al. 2025 (RAG-Gym, arXiv 2502.13957).
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
import pyarrow as pa

from ratchet.config import PreferenceConfig, TrainingConfig
from ratchet.errors import UserError
from ratchet.records import QuestionChoice, Selection, TokenRow, Trajectory, content_key
from rewards.similarity import resemble

LESSON_FIELDS = (
    pa.field("question", pa.string()),
    pa.field("reward", pa.float64()),
    pa.field("weight", pa.float64()),
    pa.field("example", pa.string()),
    pa.field("chosen", pa.bool_()),
    pa.field("action", pa.int32()),
)
"""Further columns of token rows (`ratchet.records.TokenRow`)."""
EQUAL = 1e-9
"""Rewards and weights closer than this differ only by rounding."""


@dataclass(frozen=True)
class Lesson:
    """What is learnt of one trajectory, or of one action; the fields are those of a token row."""

    question: str
    reward: float
    weight: float
    example: str
    chosen: bool


def weighted(lesson: Lesson, factor: float) -> Lesson:
    """The lesson with its weight times a factor."""
    return lesson if factor == 1 else replace(lesson, weight=lesson.weight * factor)


@dataclass(frozen=True)
class ActionLesson:
    """A lesson of one action: `ids[start:end]` of a conversation, after everything before it."""

    trajectory: str
    conversation: int
    start: int
    end: int
    lesson: Lesson


def learns_from_kept_alone(training: TrainingConfig, selection: Selection) -> bool:
    """Whether the rows are the paper's: those of the kept trajectories, each with the weight 1."""
    is_plain = training.objective == "sft" and not training.role_credit
    return is_plain and all(choice.weight == 1 for choice in selection.questions)


def compares_actions(training: TrainingConfig) -> bool:
    """Whether examples are single actions, which the trajectories have to be read for."""
    return training.objective in ("dpo", "kto") and training.preference.level == "action"


def needs_both_sides(training: TrainingConfig) -> bool:
    """Whether the objective learns nothing from good trajectories alone."""
    weighted = training.weighted
    has_negatives = weighted.baseline == "question_mean" and weighted.negative_weight > 0
    return {"sft": False, "weighted": has_negatives, "dpo": True, "kto": True}[training.objective]


def check_lessons(training: TrainingConfig, selections: Sequence[Selection]) -> None:
    """Raises UserError, in one line, for selections that the objective learns nothing from. Of actions, it notices only
    that no question has different rewards."""
    questions = [choice for selection in selections for choice in selection.questions if choice.kept]
    if questions and all(choice.weight <= EQUAL for choice in questions):
        raise UserError(
            f"rewards.select.difficulty={selections[0].rule.get('difficulty')} gives the weight 0 to all "
            f"{len(questions)} kept questions, since every attempt at them succeeded: set it to none, or raise "
            "rewards.select.success"
        )
    if training.objective == "sft":
        return
    if not compares_actions(training) and not any(choice.candidates for choice in questions):
        raise UserError(
            f"training.objective={training.objective}: the selection names no candidates, since it is of an earlier "
            "version: run `python -m rewards` again"
        )
    if compares_actions(training):
        is_enough = any(max(_known(choice)) - min(_known(choice)) > EQUAL for choice in questions)
    else:
        sides = {one.chosen for choice in questions for one in trajectory_lessons(choice, training).values()}
        is_enough = len(sides) > needs_both_sides(training)
    if not is_enough:
        raise UserError(no_lessons_message(training, selections, {}))


def no_lessons_message(training: TrainingConfig, selections: Sequence[Selection], skipped: Mapping[str, int]) -> str:
    """The message where the objective finds nothing to compare; `skipped` conversations by reason."""
    what = "actions after the same tokens that" if compares_actions(training) else "trajectories that"
    margin = training.preference.min_margin if training.objective in ("dpo", "kto") else 0
    count = sum(bool(choice.kept) for selection in selections for choice in selection.questions)
    left_out = f" (skipped: {dict(skipped)})" if skipped else ""
    return (
        f"training.objective={training.objective} learns from better and worse {what} differ in reward"
        f"{f' by more than {margin:g}' if margin else ''}, and none of the {count} kept questions has both{left_out}: "
        "sample more or hotter (sampling.samples, sampling.temperature), or set training.objective=sft"
    )


def trajectory_lessons(choice: QuestionChoice, training: TrainingConfig, prefix: str = "") -> dict[str, Lesson]:
    """By trajectory key, what is learnt of a question's trajectories; `prefix` makes its id unique among members."""
    question = prefix + choice.question_id
    rewards = {key: value for key in choice.candidates if (value := choice.rewards[key]) is not None}
    if choice.weight <= EQUAL or not choice.kept:
        return {}
    if training.objective == "sft":
        return {key: Lesson(question, choice.rewards[key] or 0.0, choice.weight, "", True) for key in choice.kept}
    if training.objective == "dpo":
        return _pairs(choice, rewards, training.preference, question)
    mean = fmean(_known(choice))
    found: dict[str, Lesson] = {}
    for key, reward in rewards.items():
        if training.objective == "kto":
            if lesson := _unpaired(reward, mean, training.preference, choice.weight, question, key):
                found[key] = lesson
            continue
        weighted = training.weighted
        advantage = reward - (mean if weighted.baseline == "question_mean" else 0.0)
        weight = choice.weight * advantage * (1.0 if advantage > 0 else weighted.negative_weight)
        if abs(weight) > EQUAL:
            found[key] = Lesson(question, reward, weight, "", weight > 0)
    return found


def _known(choice: QuestionChoice) -> list[float]:
    return [value for value in choice.rewards.values() if value is not None]


def _pairs(
    choice: QuestionChoice, rewards: Mapping[str, float], preference: PreferenceConfig, question: str
) -> dict[str, Lesson]:
    """The first kept trajectory against the worst, the second against the second worst, and so on."""
    chosen = [key for key in choice.kept if key in rewards]
    rejected = sorted((key for key in rewards if key not in chosen), key=lambda key: rewards[key])
    found: dict[str, Lesson] = {}
    for number, (good, bad) in enumerate(zip(chosen, rejected, strict=False)):
        if rewards[good] - rewards[bad] > preference.min_margin + EQUAL:
            for key in (good, bad):
                found[key] = Lesson(question, rewards[key], choice.weight, f"{question}#{number}", key == good)
    return found


def _unpaired(
    reward: float, mean: float, preference: PreferenceConfig, weight: float, question: str, example: str
) -> Lesson | None:
    """A desirable or undesirable example; None where the reward is too close to the mean."""
    if abs(reward - mean) <= preference.min_margin + EQUAL:
        return None
    side = preference.desirable_weight if reward > mean else preference.undesirable_weight
    return Lesson(question, reward, weight * side, example, reward > mean)


@dataclass
class ActionRewards:
    """One action after one beginning of a conversation, and the rewards of the attempts that took it."""

    trajectory: str
    conversation: int
    start: int
    end: int
    ids: tuple[int, ...] = ()
    rewards: list[float] = field(default_factory=list)


def action_lessons(
    trajectories: Iterable[Trajectory], selection: Selection, training: TrainingConfig, prefix: str = ""
) -> list[ActionLesson]:
    """Lessons of the actions of these trajectories, which are read once, in any order.

    Every attempt with a reward counts for its actions' rewards, one that did not finish as well. Equal actions after
    the same tokens are one.
    """
    weights = {choice.question_id: choice.weight for choice in selection.questions}
    found: list[ActionLesson] = []
    for group, actions in action_groups(trajectories, selection).items():
        question = prefix + group[0]
        name = f"{question}#{group[1]}#{group[2][:16]}"
        found += _compare(list(actions.values()), training, question, name, weights[group[0]])
    return found


ActionGroup = tuple[str, str, str]
"""The question, the role and the digest of the tokens before an action."""


def action_groups(
    trajectories: Iterable[Trajectory], selection: Selection
) -> dict[ActionGroup, dict[str, ActionRewards]]:
    """The actions that attempts at the kept questions took after the same tokens, by digest, in the order of questions
    and trajectories. Those that are as similar as `rewards.select.similarity` says count as one."""
    choices = {choice.question_id: choice for choice in selection.questions if choice.kept and choice.weight > EQUAL}
    groups: dict[ActionGroup, dict[str, ActionRewards]] = defaultdict(dict)
    order: dict[ActionGroup, tuple[int, str, int, int]] = {}
    rank = {question: number for number, question in enumerate(choices)}
    for trajectory in trajectories:
        choice = choices.get(trajectory.question_id)
        reward = choice.rewards.get(trajectory.key) if choice else None
        if choice is None or reward is None or trajectory.status == "failed":
            continue
        for number, start, end, role, before, ids in _actions(trajectory):
            group = (choice.question_id, role, before)
            at = (rank[choice.question_id], trajectory.key, number, start)
            order[group] = min(order.get(group, at), at)
            action = content_key(ids)
            one = groups[group].setdefault(action, ActionRewards(trajectory.key, number, start, end, ids))
            if (trajectory.key, number) < (one.trajectory, one.conversation):
                one.trajectory, one.conversation = trajectory.key, number  # whichever order they are read in
            one.rewards.append(reward)
    similarity = selection.rule.get("similarity", 1.0)
    return {
        group: _without_near_identical(groups[group], group[1], similarity)
        for group in sorted(groups, key=lambda group: order[group])
    }


def _without_near_identical(
    actions: dict[str, ActionRewards], role: str, similarity: float | None
) -> dict[str, ActionRewards]:
    """The actions, of those that resemble each other the first one, with the rewards of all."""
    if similarity is None or similarity == 1:
        return actions
    found: dict[str, ActionRewards] = {}
    for digest, one in sorted(actions.items(), key=lambda item: (item[1].trajectory, item[1].conversation)):
        first = next((f for f in found.values() if resemble(((role, f.ids),), ((role, one.ids),), similarity)), None)
        if first is None:
            found[digest] = one
        else:
            first.rewards += one.rewards
    return found


def _compare(
    actions: list[ActionRewards], training: TrainingConfig, question: str, name: str, weight: float
) -> Iterator[ActionLesson]:
    """The lessons of actions after the same tokens."""
    preference = training.preference
    ranked = sorted(actions, key=lambda one: (-fmean(one.rewards), one.trajectory, one.start))
    if len(ranked) < 2:
        return
    rewards = [fmean(one.rewards) for one in ranked]
    mean = fmean(reward for one in ranked for reward in one.rewards)
    if training.objective == "dpo":
        if rewards[0] - rewards[-1] <= preference.min_margin + EQUAL:
            return
        ranked, rewards = [ranked[0], ranked[-1]], [rewards[0], rewards[-1]]
    for number, (one, reward) in enumerate(zip(ranked, rewards, strict=True)):
        lesson = (
            Lesson(question, reward, weight, name, number == 0)
            if training.objective == "dpo"
            else _unpaired(reward, mean, preference, weight, question, f"{name}#{number}")
        )
        if lesson:
            yield ActionLesson(one.trajectory, one.conversation, one.start, one.end, lesson)


def _actions(trajectory: Trajectory) -> Iterator[tuple[int, int, int, str, str, tuple[int, ...]]]:
    """(conversation, start, end, role, digest of the ids before, the ids) of parsed actions of trainable roles."""
    for number, conversation in enumerate(trajectory.conversations):
        if not conversation.trainable:
            continue
        ids = np.asarray(conversation.ids, dtype=np.int64)
        before, at = hashlib.sha256(), 0
        for span in conversation.spans:
            if span.sampled and span.parsed:
                before.update(ids[at : span.start].tobytes())
                at = span.start
                action = tuple(conversation.ids[span.start : span.end])
                yield number, span.start, span.end, conversation.role, before.copy().hexdigest(), action


def action_row(trajectory: Trajectory, action: ActionLesson) -> TokenRow:
    """The row of one action: its conversation up to the action's end, and labels on the action alone."""
    conversation = trajectory.conversations[action.conversation]
    return TokenRow(
        trajectory=trajectory.key,
        conversation=action.conversation,
        role=conversation.role,
        ids=conversation.ids[: action.end],
        loss_mask=(0,) * action.start + (1,) * (action.end - action.start),
        retokenised=conversation.retokenised,
        action=action.start,
    )


def with_lessons(table: pa.Table, lessons: Sequence[Lesson], actions: Sequence[int | None]) -> pa.Table:
    """A table of rows with LESSON_FIELDS: a lesson for each row, and the action that it teaches."""
    *fields, last = LESSON_FIELDS
    for one in fields:
        table = table.append_column(one, pa.array([getattr(lesson, one.name) for lesson in lessons], one.type))
    return table.append_column(last, pa.array(actions, last.type))


def without_single_sides(table: pa.Table, skipped: Counter[str]) -> tuple[pa.Table, Counter[str]]:
    """The rows without pairs of which one side gave no row, and with those rows the skipped conversations by reason."""
    sides = list(zip(table["example"].to_pylist(), table["chosen"].to_pylist(), strict=True))
    known = set(sides)
    both = {example for example, side in known if (example, not side) in known}
    left = [example in both for example, _ in sides]
    return table.filter(pa.array(left, pa.bool_())), skipped + Counter(
        {"the pair's other side has no row": left.count(False)}
    )
