"""How much each role's actions decide of the reward, and what their rows therefore weigh (`training.role_credit`).

Attempts at one question share the beginning of a conversation until they part. Where two attempts took different
actions of a role after the same tokens, their rewards differ by what these actions are worth, and by chance in all that
follows. Where they took the same action, they differ by chance alone. So the variance of reward that is due to the
role's choice is half the mean squared difference in the first case, less that in the second. Preferences of actions
compare the same groups (`training.examples`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations
from statistics import fmean

from ratchet.records import Selection, Trajectory
from training.examples import action_groups


def role_effects(trajectories: Iterable[Trajectory], selection: Selection) -> dict[str, float | None]:
    """By role, the standard deviation of reward that its choice of action makes; None where no two attempts took
    different actions after the same tokens. The trajectories are read once.

    Where no two attempts took the same action of a role either, chance is estimated from all roles.
    """
    different, same = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for (_, role, _), actions in action_groups(trajectories, selection).items():
        taken = [(number, reward) for number, one in enumerate(actions.values()) for reward in one.rewards]
        for (action, reward), (other, value) in combinations(taken, 2):
            (same if action == other else different)[role].append((reward - value) ** 2)
        different[role], same[role]  # a role without pairs is named too
    by_chance = [square for squares in same.values() for square in squares]
    effects: dict[str, float | None] = {}
    for role in sorted(different):
        noise = fmean(same[role] or by_chance or [0.0])
        found = different[role]
        effects[role] = math.sqrt(max(0.0, fmean(found) - noise) / 2) if found else None
    return effects


def role_weights(effects: Mapping[str, float | None], credit: float) -> dict[str, float]:
    """By role, the factor on its rows' weights: 1 - credit + credit * effect / mean effect. It is 1 for a role whose
    effect is not known, and for every role where no effect is above 0."""
    known = [effect for effect in effects.values() if effect is not None]
    mean = fmean(known) if known else 0.0
    if mean == 0:
        return dict.fromkeys(effects, 1.0)
    return {role: 1.0 if effect is None else 1 - credit + credit * effect / mean for role, effect in effects.items()}
