"""Credit for single actions: which actions of a trajectory brought its answer nearer, from what is stored.

Selection keeps whole trajectories, so a question that no sample answered teaches nothing, though some of its searches
found the document. Credit is given action by action (`training.credit`), and the rows are of single actions:

information_gain   how much the action and what came of it raise the log-probability of the gold answer under the model
                   that training starts from (Information Gain-based Policy Optimization, arXiv 2510.14967). Beside the
                   kept trajectories, the actions of others that raised it most are learnt: of each role at most as many
                   as its kept trajectories have, or a role that is called often would crowd out the rest.
evidence           without gold answers: of the kept trajectories, a search that found none of the documents of the
                   answer is not learnt.

An action whose effect does not come back into its conversation, such as the last one, has no gain of its own: it is
learnt where its trajectory was kept. The gains are computed once (`training.gains`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ratchet.config import TrainingConfig
from ratchet.errors import UserError
from ratchet.files import read_segments
from ratchet.records import Record, Search, ToolCall, Trajectory, content_key
from training.actions import Action, ActionLesson, parsed_actions
from training.kept import KeptTrajectories
from training.objectives.objective import Lesson

LEAST = 0.05
"""Weights below this are left out."""


class ActionGain(NamedTuple):
    """How much one action raised the log-probability of the gold answer, in nats a token of it."""

    conversation: int
    start: int
    gain: float


class TrajectoryGains(Record):
    """The gains of a trajectory's actions; a line of the folder `gains/`."""

    trajectory: str
    gains: tuple[ActionGain, ...]

    def by_action(self) -> dict[tuple[int, int], float]:
        """By conversation and start."""
        return {(one.conversation, one.start): one.gain for one in self.gains}


def read_gains(folder: Path) -> dict[str, TrajectoryGains]:
    """By trajectory key, what was computed so far."""
    return {one.trajectory: one for one in read_segments(folder, TrajectoryGains)}


def credited(kept: KeptTrajectories) -> dict[str, str]:
    """Trajectory key to question, of all that selection saw, whatever their reward."""
    choices = kept.selection.questions
    return {key: kept.source.prefix + choice.question_id for choice in choices for key in choice.rewards}


def credit_lessons(
    kept: KeptTrajectories, training: TrainingConfig, gains: Mapping[str, TrajectoryGains]
) -> list[ActionLesson]:
    """The actions that are learnt of a round, each with its weight, in the order of questions and trajectories.

    `gains`: as `read_gains` gives them. Raises UserError where one is missing.
    """
    if training.credit == "evidence":
        weights = dict(_evidence(kept.store.read(kept.selection.kept)))
    else:
        weights = _gain_weights(kept, gains)
    rewards = {key: reward for choice in kept.selection.questions for key, reward in choice.rewards.items()}
    questions = credited(kept)
    order = {key: place for place, key in enumerate(questions)}
    lessons = [
        ActionLesson(key, action, Lesson(questions[key], rewards[key] or 0.0, weight, "", True))
        for (key, action), weight in weights.items()
        if weight >= LEAST
    ]
    return sorted(lessons, key=lambda one: (order[one.trajectory], one.action.conversation, one.action.start))


def _gain_weights(kept: KeptTrajectories, gains: Mapping[str, TrajectoryGains]) -> dict[tuple[str, Action], float]:
    """Every action of a kept trajectory with the weight 1, and the best of each role from the others by their gains.

    The weight of one of these is its gain as a share of the median gain of its role's chosen ones, at most 1.
    """
    wanted = credited(kept)
    if missing := [key for key in wanted if key not in gains]:
        raise UserError(
            f"{kept.source.folder.path}: the gains of {len(missing)} trajectories are not computed yet; "
            "`accelerate launch train.py` computes them"
        )
    is_kept = set(kept.selection.kept)
    weights: dict[tuple[str, Action], float] = {}
    raised: dict[str, list[tuple[float, tuple[str, Action]]]] = defaultdict(list)
    room: Counter[str] = Counter()
    for trajectory in kept.store.read(wanted):
        own = gains[trajectory.key].by_action()
        for action in parsed_actions(trajectory):
            gain = own.get((action.conversation, action.start))
            if trajectory.key in is_kept:
                weights[trajectory.key, action] = 1.0
                room[action.role] += 1
            elif gain is not None and gain > 0:
                raised[action.role].append((gain, (trajectory.key, action)))
    for role, found in raised.items():
        best = sorted(found, key=lambda one: -one[0])[: room[role]]
        scale = median(gain for gain, _ in best) if best else 1.0
        weights |= {action: min(gain / scale, 1.0) for gain, action in best}
    return weights


def _evidence(trajectories: Iterable[Trajectory]) -> Iterator[tuple[tuple[str, Action], float]]:
    """Every action with the weight 1, or 0 where it looked something up and none of it is in the answer's documents."""
    for trajectory in trajectories:
        support = {passage.id for passage in trajectory.passages}
        found = _found_by_actions(trajectory)
        for action in parsed_actions(trajectory):
            passages = found.get((action.conversation, action.start))
            yield (trajectory.key, action), float(passages is None or bool(passages & support))


def _found_by_actions(trajectory: Trajectory) -> dict[tuple[int, int], set[str]]:
    """By conversation and start of the model call before it, the ids of the passages that lookups found."""
    found: dict[tuple[int, int], set[str]] = {}
    last: dict[str, tuple[int, int]] = {}
    for event in trajectory.events:
        if event.kind == "model":
            last[event.role] = event.conversation, event.start
        elif isinstance(event, Search | ToolCall) and event.role in last:
            found.setdefault(last[event.role], set()).update(passage.id for passage in event.passages)
    return found


def credit_digest(
    training: TrainingConfig, kept: Iterable[KeptTrajectories], gains: Mapping[str, TrajectoryGains]
) -> str:
    """What rows of single actions depend on, beyond the selections."""
    return content_key(training.credit, LEAST, [gains[key] for part in kept for key in credited(part) if key in gains])
