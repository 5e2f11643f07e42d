"""How many trajectories each question gets, where a pilot decides it (`sampling.pilot`)."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.core.records import Record


class Allocation(Record):
    """round-N/samples.json: what was decided after the pilot. It stays decided, whatever is scored later."""

    pilot: int
    successes: dict[str, int]
    """By question, how many trajectories of the pilot succeeded (`rewards.select.success`)."""
    questions: dict[str, int]
    """By question, the number of its trajectories, those of the pilot among them."""


def allocate(successes: Mapping[str, int], pilot: int, samples: int) -> Allocation:
    """Divide `samples` times the number of questions, `pilot` of each of which are spent, exactly.

    Every question gets a share of the rest by how far it is expected to fail, (failures + 1) / (pilot + 2) by the rule
    of succession: with 4 in the pilot, five times as much where none succeeded as where all did. What rounding leaves
    goes to the largest remainders, the first of equal ones.
    """
    weights = {name: pilot - count + 1 for name, count in successes.items()}
    rest, total = (samples - pilot) * len(weights), sum(weights.values())
    further = {name: rest * weight // total for name, weight in weights.items()}
    by_remainder = sorted(weights, key=lambda name: -(rest * weights[name] % total))
    for name in by_remainder[: rest - sum(further.values())]:
        further[name] += 1
    questions = {name: pilot + count for name, count in further.items()}
    return Allocation(pilot=pilot, successes=dict(successes), questions=questions)
