"""Which trajectories do the same: training on both would only weigh one of them twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ratchet.core.records import Conversation, Trajectory
from ratchet.sampling.trajectories import Outline

GRAM = 4
"""Tokens of the sequences by which the similarity of trajectories is measured."""

Actions = tuple[tuple[str, tuple[int | str, ...]], ...]
"""What was sampled of a trajectory: (role, ids, or characters of a dialogue that is text) of each conversation."""


def distinct(
    trajectories: Sequence[Outline], whole: Mapping[str, Trajectory], similarity: float | None
) -> list[Outline]:
    """The trajectories without those whose actions are the same as an earlier one's, or as similar as that; one without
    sampled tokens stays. None: all. `whole`: by key."""
    if similarity is None or len(trajectories) < 2:
        return list(trajectories)
    seen: list[Actions] = []
    kept: list[Outline] = []
    for trajectory in trajectories:
        actions = tuple(
            (conversation.role, _sampled(conversation)) for conversation in whole[trajectory.key].conversations
        )
        if any(resemble(actions, earlier, similarity) for earlier in seen):
            continue
        if any(ids for _, ids in actions):
            seen.append(actions)
        kept.append(trajectory)
    return kept


def _sampled(conversation: Conversation) -> tuple[int | str, ...]:
    spans = [span for span in conversation.spans if span.sampled]
    return tuple(token for span in spans for token in conversation.content[span.start : span.end])


def resemble(actions: Actions, others: Actions, similarity: float) -> bool:
    """Whether the Jaccard index of their sequences of `GRAM` tokens, each under its role, is at least `similarity`."""
    if similarity == 1 or actions == others:
        return actions == others
    mine, theirs = _grams(actions), _grams(others)
    return len(mine & theirs) >= similarity * len(mine | theirs)


def _grams(actions: Actions) -> set[tuple[str, tuple[int | str, ...]]]:
    return {
        (role, ids[at : at + GRAM]) for role, ids in actions for at in range(max(len(ids) - GRAM + 1, min(len(ids), 1)))
    }
