"""The reward and its second opinion, round by round, and whether they part (`rewards.audit`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ratchet.core.plugins import short_name
from ratchet.core.selection import Audit, Audited
from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.statistics import bootstrap_interval, paired_difference
from ratchet.report.rounds import RoundNumbers, interval, number

SEED = 0
Opinion = Literal["reward", "audit"]


@dataclass(frozen=True)
class AuditRow:
    """What the reward and the audit say of the same trajectories of a round."""

    number: int
    sampled: Mapping[Opinion, Estimate]
    kept: Mapping[Opinion, Estimate]


def audit_rows(rounds: Sequence[RoundNumbers]) -> list[AuditRow]:
    """A row for each round that has an audit."""
    return [AuditRow(n.number, _means(n.audit.sampled), _means(n.audit.kept)) for n in rounds if n.audit is not None]


def _means(audited: Mapping[str, Audited]) -> dict[Opinion, Estimate]:
    pairs = [(one.reward, one.audit) for one in audited.values()]
    known = [(reward, audit) for reward, audit in pairs if reward is not None and audit is not None]
    return {
        "reward": bootstrap_interval([reward for reward, _ in known], SEED),
        "audit": bootstrap_interval([audit for _, audit in known], SEED),
    }


def audited_by(rounds: Sequence[RoundNumbers]) -> str:
    """The scores of the latest audit and the judge that gave them; empty without one."""
    audit = next((n.audit for n in reversed(rounds) if n.audit is not None), None)
    if audit is None:
        return ""
    return weights_text(audit.weights) + (f", judged by {audit.judge}" if audit.judge else "")


def weights_text(weights: Mapping[str, float]) -> str:
    """'4 × correctness, 1 × my reward'."""
    return ", ".join(f"{weight:g} × {short_name(name).replace('_', ' ')}" for name, weight in weights.items())


def audit_sentences(rounds: Sequence[RoundNumbers]) -> list[str]:
    """Where the reward rose and the audit fell, from a round to the next or since the first; else one sentence that
    there is no such place. Empty for fewer than two audits."""
    audits = [(numbers.number, numbers.audit) for numbers in rounds if numbers.audit is not None]
    sentences = []
    for place, later in enumerate(audits[1:], 1):
        for earlier in dict.fromkeys((place - 1, 0)):
            sentences.append(_parting(*audits[earlier], *later))
    if len(audits) > 1 and not any(sentences):
        return ["In no round did the reward rise while the audit fell."]
    return [sentence for sentence in sentences if sentence]


def _parting(first: int, before: Audit, second: int, after: Audit) -> str:
    """A sentence where the audit falls while the reward rises; empty where not."""
    if (before.weights, before.judge) != (after.weights, after.judge):
        return f"The audits of rounds {first} and {second} are by other scores or another judge: they are not compared."
    reward, audit = _change(before, after, "reward"), _change(before, after, "audit")
    if reward.mean is None or audit.mean is None or not round(reward.mean, 3) > 0 > round(audit.mean, 3):
        return ""
    said = (
        f"From round {first} to round {second} the reward rose ({_with_interval(reward)}) while the audit fell "
        f"({_with_interval(audit)}), on {reward.n} questions that both rounds have"
    )
    if reward.is_clear() and audit.is_clear():
        return f"{said}: the model may have learnt to please the reward. Read its answers before you train further."
    return f"{said}. This may be chance: not both changes are clear. More rewards.audit.questions would tell."


def _change(before: Audit, after: Audit, opinion: Opinion) -> Difference:
    """Of one opinion, over the questions on which both rounds have both opinions."""
    pairs = [(one, other) for key, one in before.sampled.items() if (other := after.sampled.get(key)) is not None]
    known = [pair for pair in pairs if all(one.reward is not None and one.audit is not None for one in pair)]
    first, second = ([getattr(pair[side], opinion) for pair in known] for side in (0, 1))
    return paired_difference(first, second, SEED)


def _with_interval(difference: Difference) -> str:
    return f"{number(difference.mean, 3, sign=True)} {interval(difference, 3)}".rstrip()
