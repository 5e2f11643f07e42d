"""How many trajectories each question gets, where a pilot decides it (`sampling.pilot`)."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.records import Record


class Counts(Record):
    """Numbers of trajectories of one question."""

    plain: int
    hinted: int = 0
    """Sampled with a hint (`agents.core.hints`); their sample numbers follow those of the others."""


class Allocation(Record):
    """round-N/samples.json: what was decided after the pilot. It stays decided, whatever is scored later."""

    pilot: int
    successes: dict[str, int]
    """By question, how many trajectories of the pilot succeeded (`rewards.select.success`)."""
    questions: dict[str, Counts]
    """The pilot's trajectories among them."""

    @property
    def total(self) -> int:
        return sum(counts.plain + counts.hinted for counts in self.questions.values())


def allocate(successes: Mapping[str, int], pilot: int, samples: int, hints: bool) -> Allocation:
    """Divide `samples` times the number of questions, `pilot` of each of which are spent, exactly.

    Every question gets a share of the rest by how far it is expected to fail, (failures + 1) / (pilot + 2) by the rule
    of succession: with 4 in the pilot, five times as much where none succeeded as where all did. What rounding leaves
    goes to the largest remainders, the first of equal ones. `hints`: half of the further trajectories of a question
    without a success are sampled with a hint.
    """
    weights = {name: pilot - count + 1 for name, count in successes.items()}
    rest, total = (samples - pilot) * len(weights), sum(weights.values())
    further = {name: rest * weight // total for name, weight in weights.items()}
    by_remainder = sorted(weights, key=lambda name: -(rest * weights[name] % total))
    for name in by_remainder[: rest - sum(further.values())]:
        further[name] += 1
    questions = {}
    for name, count in further.items():
        hinted = (count + 1) // 2 if hints and not successes[name] else 0
        questions[name] = Counts(plain=pilot + count - hinted, hinted=hinted)
    return Allocation(pilot=pilot, successes=dict(successes), questions=questions)
