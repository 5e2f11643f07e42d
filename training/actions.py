"""Actions that attempts at a question took after the same tokens of a conversation, with the rewards that followed.

An action's reward is the mean reward of all attempts that took it, of those that did not finish as well. Equal actions
after the same tokens are one, and so are those that are as similar as `rewards.select.similarity` says.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

import numpy as np

from ratchet.core.records import Selection, Trajectory, content_key
from ratchet.rewards.selection import resemble
from ratchet.training.lessons import TokenRow
from ratchet.training.objectives.objective import EQUAL, Alternatives, Lesson, Objective


class ActionGroup(NamedTuple):
    """What attempts have in common before they act."""

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
    """Digest of the tokens before it."""
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


@dataclass(frozen=True)
class ActionLesson:
    """A lesson of one action."""

    trajectory: str
    action: Action
    lesson: Lesson

    def row(self, trajectory: Trajectory, mask: Sequence[int]) -> TokenRow:
        """Its conversation up to the action's end, and labels on the action alone: where `mask`, the conversation's,
        has them."""
        start, end = self.action.start, self.action.end
        conversation = trajectory.conversations[self.action.conversation]
        return TokenRow(
            trajectory=trajectory.key,
            conversation=self.action.conversation,
            role=conversation.role,
            ids=conversation.ids[:end],
            loss_mask=(0,) * start + tuple(mask[start:end]),
            action=start,
        )


def action_lessons(
    trajectories: Iterable[Trajectory], selection: Selection, objective: Objective, prefix: str = ""
) -> Iterator[ActionLesson]:
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
        yield from (
            ActionLesson(taken.trajectory, taken.action, lessons[key]) for key, taken in named.items() if key in lessons
        )


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
