"""The lessons that an objective draws from a selection, as further columns of token rows.

Objectives other than `sft` learn from all candidates of the questions that selection kept (`rewards.selection`), by the
rewards that are stored in the selection. Which lessons these are, each objective says itself (`training.objectives`).

The alternatives that it compares are whole trajectories, or actions that attempts at a question took after the same
tokens of a conversation. An action's reward is the mean reward of all attempts that took it, of those that did not
finish as well. Equal actions after the same tokens are one, and so are those that are as similar as
`rewards.select.similarity` says.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.core.errors import UserError
from ratchet.core.records import QuestionChoice, Selection, Trajectory, content_key
from ratchet.rewards.selection import resemble
from ratchet.training.objectives.objective import EQUAL, Alternatives, ExampleObjective, Lesson, Objective

LESSON_FIELDS = (
    pa.field("question", pa.string()),
    pa.field("reward", pa.float64()),
    pa.field("weight", pa.float64()),
    pa.field("example", pa.string()),
    pa.field("chosen", pa.bool_()),
    pa.field("action", pa.int32()),
)
"""Further columns of token rows."""


def is_plain(objective: Objective, selection: Selection) -> bool:
    """True where the rows are the paper's: those of the kept trajectories, each with the weight 1."""
    return objective.learns_from_kept_alone and all(choice.weight == 1 for choice in selection.choices)


def trajectory_lessons(selection: Selection, objective: Objective, prefix: str = "") -> dict[str, Lesson]:
    """The lessons of whole trajectories, by key; `prefix` makes a question's id unique among members."""
    return {
        key: lesson
        for choice in selection.choices
        if choice.kept and choice.weight > EQUAL
        for key, lesson in objective.lessons(_alternatives(choice, prefix + choice.question_id)).items()
    }


def _alternatives(choice: QuestionChoice, question: str) -> Alternatives:
    return Alternatives(
        question,
        choice.weight,
        rewards={key: value for key in choice.candidates if (value := choice.rewards[key]) is not None},
        mean=fmean(known_rewards(choice) or [0.0]),
        kept={key: choice.rewards[key] or 0.0 for key in choice.kept},
        pairs=[f"{question}#{'+'.join(choice.learners)}{number}" for number in range(len(choice.kept))],
    )


def known_rewards(choice: QuestionChoice) -> list[float]:
    """The rewards of a question's attempts, those that did not finish among them."""
    return [value for value in choice.rewards.values() if value is not None]


def check_lessons(objective: Objective, selections: Sequence[Selection]) -> None:
    """Raises UserError for selections without lessons; of actions, where no question has different rewards."""
    questions = [choice for selection in selections for choice in selection.choices if choice.kept]
    if questions and all(choice.weight <= EQUAL for choice in questions):
        raise UserError(
            f"rewards.select.difficulty={selections[0].rule.get('difficulty')} gives the weight 0 to all "
            f"{len(questions)} kept questions, since every attempt at them succeeded: set it to none, or raise "
            "rewards.select.success"
        )
    if objective.learns_from_kept_alone:
        return
    if objective.compares_actions:
        is_enough = any(max(known_rewards(choice)) - min(known_rewards(choice)) > EQUAL for choice in questions)
    else:
        lessons = [trajectory_lessons(selection, objective).values() for selection in selections]
        is_enough = len({lesson.chosen for part in lessons for lesson in part}) > objective.needs_both_sides
    if not is_enough:
        raise UserError(no_lessons_message(objective, selections, {}))


def no_lessons_message(objective: Objective, selections: Sequence[Selection], skipped: Mapping[str, int]) -> str:
    """The message where the objective finds nothing to compare; `skipped` conversations by reason."""
    what = "actions after the same tokens that" if objective.compares_actions else "trajectories that"
    count = sum(bool(choice.kept) for selection in selections for choice in selection.choices)
    left_out = f" (skipped: {dict(skipped)})" if skipped else ""
    return (
        f"training.objective={objective.name} learns from better and worse {what} differ in reward, and none of the "
        f"{count} kept questions has both{left_out}: sample more or hotter (sampling.samples, sampling.temperature), "
        "or set training.objective=sft"
    )


def with_lessons(table: pa.Table, lessons: Sequence[Lesson], actions: Sequence[int | None]) -> pa.Table:
    """A table of rows with LESSON_FIELDS: a lesson for each row, and the action that it teaches."""
    *columns, last = LESSON_FIELDS
    for column in columns:
        table = table.append_column(column, pa.array([getattr(one, column.name) for one in lessons], column.type))
    return table.append_column(last, pa.array(actions, last.type))


def with_numbers(rows: pa.Table) -> pa.Table:
    """The rows with two more columns: their number in the table, and that of their example."""
    examples = pc.dictionary_encode(rows["example"].combine_chunks()).indices.cast(pa.int64())
    return rows.append_column("number", pa.array(range(len(rows)), pa.int64())).append_column(
        "example_number", examples
    )


def without_single_sides(table: pa.Table, objective: Objective) -> tuple[pa.Table, Counter[str]]:
    """The rows without pairs of which one side gave no row, and the number of these rows by the reason."""
    if not (isinstance(objective, ExampleObjective) and objective.in_pairs):
        return table, Counter()
    sides = list(zip(table["example"].to_pylist(), table["chosen"].to_pylist(), strict=True))
    known = set(sides)
    both = {example for example, side in known if (example, not side) in known}
    has_both = [example in both for example, _ in sides]
    left_out = Counter({"the pair's other side has no row": has_both.count(False)})
    return table.filter(pa.array(has_both, pa.bool_())), +left_out


# Lessons of single actions


class ActionGroup(NamedTuple):
    """Attempts at a question whose conversations begin with the same tokens."""

    question: str
    role: str
    before: str
    """Digest of the tokens before the action."""


class Action(NamedTuple):
    """A parsed action of a trainable role: `conversation.ids[start:end]`, after everything before it."""

    conversation: int
    start: int
    end: int
    role: str
    before: str
    ids: tuple[int, ...]


@dataclass
class ActionRewards:
    """One action of a group, where the first trajectory took it, and the rewards of the attempts that took it."""

    trajectory: str
    action: Action
    rewards: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return fmean(self.rewards)


def action_lessons(
    trajectories: Iterable[Trajectory], selection: Selection, objective: Objective, prefix: str = ""
) -> Iterator[tuple[ActionRewards, Lesson]]:
    """Lessons of the actions of these trajectories, which are read once, in any order; in the order of questions and
    trajectories, and of actions after the same tokens the best first."""
    weights = {choice.question_id: choice.weight for choice in selection.questions}
    for group, actions in action_groups(trajectories, selection).items():
        if len(actions) < 2:
            continue
        question = prefix + group.question
        name = f"{question}#{group.role}#{group.before[:16]}"
        ranked = sorted(actions, key=lambda taken: (-taken.mean, taken.trajectory, taken.action.start))
        named = {f"{name}#{rank}": taken for rank, taken in enumerate(ranked)}
        best = next(iter(named))
        alternatives = Alternatives(
            question,
            weights[group.question],
            # Of equally bad ones, the last is the worst.
            rewards={key: named[key].mean for key in reversed(named)},
            mean=fmean(reward for taken in ranked for reward in taken.rewards),
            kept={best: named[best].mean},
            pairs=(name,),
        )
        lessons = objective.lessons(alternatives)
        yield from ((taken, lessons[key]) for key, taken in named.items() if key in lessons)


def action_groups(trajectories: Iterable[Trajectory], selection: Selection) -> dict[ActionGroup, list[ActionRewards]]:
    """The actions of attempts at the kept questions, in the order of questions and trajectories."""
    choices = {choice.question_id: choice for choice in selection.questions if choice.kept and choice.weight > EQUAL}
    groups: dict[ActionGroup, dict[str, ActionRewards]] = defaultdict(dict)
    order: dict[ActionGroup, tuple[int, str, int, int]] = {}
    rank = {question: number for number, question in enumerate(choices)}
    for trajectory in trajectories:
        choice = choices.get(trajectory.question_id)
        reward = choice.rewards.get(trajectory.key) if choice else None
        if choice is None or reward is None or trajectory.status == "failed":
            continue
        for action in parsed_actions(trajectory):
            group = ActionGroup(choice.question_id, action.role, action.before)
            at = (rank[choice.question_id], trajectory.key, action.conversation, action.start)
            order[group] = min(order.get(group, at), at)
            taken = groups[group].setdefault(content_key(action.ids), ActionRewards(trajectory.key, action))
            if (trajectory.key, action.conversation) < (taken.trajectory, taken.action.conversation):
                taken.trajectory, taken.action = trajectory.key, action  # whichever order they are read in
            taken.rewards.append(reward)
    similarity = selection.rule.get("similarity", 1.0)
    return {
        group: _without_near_identical(list(groups[group].values()), similarity)
        for group in sorted(groups, key=lambda group: order[group])
    }


def _without_near_identical(actions: list[ActionRewards], similarity: float | None) -> list[ActionRewards]:
    """The actions, of those that resemble each other the first one, with the rewards of all."""
    if similarity is None or similarity == 1:
        return actions
    kept: list[ActionRewards] = []
    for taken in sorted(actions, key=lambda taken: (taken.trajectory, taken.action.conversation)):
        for other in kept:
            if resemble(((other.action.role, other.action.ids),), ((taken.action.role, taken.action.ids),), similarity):
                other.rewards += taken.rewards
                break
        else:
            kept.append(taken)
    return kept


def parsed_actions(trajectory: Trajectory) -> Iterator[Action]:
    """The parsed actions of trainable roles."""
    for number, conversation in enumerate(trajectory.conversations):
        if not conversation.trainable:
            continue
        ids = np.asarray(conversation.ids, dtype=np.int64)
        before, at = hashlib.sha256(), 0
        for start, end in conversation.actions():
            before.update(ids[at:start].tobytes())
            at = start
            own = conversation.ids[start:end]
            yield Action(number, start, end, conversation.role, before.copy().hexdigest(), tuple(own))
