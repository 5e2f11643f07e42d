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
from dataclasses import dataclass, field, replace
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
    return (
        objective.learns_from_kept_alone
        and not objective.training.weighs_roles
        and all(choice.weight == 1 for choice in selection.trained)
    )


def trajectory_lessons(selection: Selection, objective: Objective, prefix: str = "") -> dict[tuple[str, str], Lesson]:
    """The lessons of whole trajectories, by key and the role that learns, which is empty for all; `prefix` makes a
    question's id unique among members."""
    return {
        (key, role): lesson
        for choice in selection.trained
        if choice.kept and choice.weight > EQUAL
        for key, lesson in _lessons(choice, objective, prefix + choice.question_id).items()
        for role in choice.learners or ("",)
    }


def kept_roles(selection: Selection) -> set[tuple[str, str]]:
    """(key, role that learns) of all kept trajectories; the role is empty for all."""
    return {(key, role) for one in selection.trained for key in one.kept for role in one.learners or ("",)}


def _lessons(choice: QuestionChoice, objective: Objective, question: str) -> dict[str, Lesson]:
    lessons = objective.lessons(_alternatives(choice, question))
    if not choice.learners:
        return lessons
    # A trajectory may be an example for several roles, each with rows and a reward of its own.
    suffix = f"#{'+'.join(choice.learners)}"
    return {key: replace(one, example=one.example and one.example + suffix) for key, one in lessons.items()}


def _alternatives(choice: QuestionChoice, question: str) -> Alternatives:
    return Alternatives(
        question,
        choice.weight,
        rewards={key: value for key in choice.candidates if (value := choice.rewards[key]) is not None},
        mean=fmean(known_rewards(choice) or [0.0]),
        kept={key: choice.rewards[key] or 0.0 for key in choice.kept},
        pairs=[f"{question}#{number}" for number in range(len(choice.kept))],
        roles=choice.learners,
    )


def known_rewards(choice: QuestionChoice) -> list[float]:
    """The rewards of a question's attempts, those that did not finish among them."""
    return [value for value in choice.rewards.values() if value is not None]


def check_lessons(objective: Objective, selections: Sequence[Selection]) -> None:
    """Raises UserError for selections without lessons; of actions, where no question has different rewards."""
    questions = [choice for selection in selections for choice in selection.trained if choice.kept]
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
    """The rows with three more columns: their number in the table, that of their example, and that of their role among
    the roles in order."""
    examples = pc.dictionary_encode(rows["example"].combine_chunks()).indices.cast(pa.int64())
    given = rows["role"].to_pylist()
    place = {role: number for number, role in enumerate(sorted(set(given)))}
    numbers = {
        "number": pa.array(range(len(rows)), pa.int64()),
        "example_number": examples,
        "role_number": pa.array([place[role] for role in given], pa.int64()),
    }
    for name, column in numbers.items():
        rows = rows.append_column(name, column)
    return rows


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
    choices = _own_choices(selection)
    for group, actions in action_groups(trajectories, selection).items():
        if len(actions) < 2:
            continue
        question, choice = prefix + group.question, _choice_of(choices, group.question, group.role)
        assert choice is not None
        name = f"{question}#{group.role}#{group.before[:16]}"
        ranked = sorted(actions, key=lambda taken: (-taken.mean, taken.trajectory, taken.action.start))
        named = {f"{name}#{rank}": taken for rank, taken in enumerate(ranked)}
        best = next(iter(named))
        alternatives = Alternatives(
            question,
            choice.weight,
            # Of equally bad ones, the last is the worst.
            rewards={key: named[key].mean for key in reversed(named)},
            mean=fmean(reward for taken in ranked for reward in taken.rewards),
            kept={best: named[best].mean},
            pairs=(name,),
            roles=(group.role,),
        )
        lessons = objective.lessons(alternatives)
        yield from ((taken, lessons[key]) for key, taken in named.items() if key in lessons)


def action_groups(trajectories: Iterable[Trajectory], selection: Selection) -> dict[ActionGroup, list[ActionRewards]]:
    """The actions of attempts at the kept questions, in the order of questions and trajectories."""
    choices = _own_choices(selection)
    groups: dict[ActionGroup, dict[str, ActionRewards]] = defaultdict(dict)
    order: dict[ActionGroup, tuple[int, str, int, int]] = {}
    rank = {question: number for number, question in enumerate(dict.fromkeys(question for question, _ in choices))}
    for trajectory in trajectories:
        for action in parsed_actions(trajectory) if trajectory.status != "failed" else ():
            choice = _choice_of(choices, trajectory.question_id, action.role)
            reward = choice.rewards.get(trajectory.key) if choice else None
            if choice is None or reward is None:
                continue
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


def _own_choices(selection: Selection) -> dict[tuple[str, str], QuestionChoice]:
    """The choices that teach, by question and the role that learns, which is empty for all."""
    return {
        (choice.question_id, role): choice
        for choice in selection.own
        if choice.kept and choice.weight > EQUAL
        for role in choice.learners or ("",)
    }


def _choice_of(choices: Mapping[tuple[str, str], QuestionChoice], question: str, role: str) -> QuestionChoice | None:
    return choices.get((question, role)) or choices.get((question, ""))


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
