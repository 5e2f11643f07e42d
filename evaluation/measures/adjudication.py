"""People's judgements of verdicts: whether the system or the data set was wrong, why, and how far annotators agree.

MERMAID (2026, arXiv 2601.22361) has people look at the claims on which it disagrees with the data set: some are the
model's errors, some the data set's, and some cannot be settled; and it counts how often a part of its Decomposer's
triplets is wrong. Its report gives no agreement between annotators, which is here Cohen's kappa of every pair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

UNCERTAIN = "UNCERTAIN"
"""The label of an annotator who cannot settle a claim."""
MODEL_ERRORS = {
    "decomposition": "the claim was taken apart wrongly",
    "not_found": "the evidence was not found",
    "wrong_memory": "recalled evidence was about something else",
    "stopped_early": "the verdict was given before there was enough evidence",
    "repeated_calls": "the same call was made again and again",
    "own_knowledge": "the verdict does not follow the evidence but what the model knows",
    "reasoning": "the evidence was there and was read wrongly",
}
CLAIM_ERRORS = {
    "wrong_label": "the data set's label is wrong",
    "temporal": "the claim's truth depends on the time",
    "vague": "a word of the claim has no definite meaning",
    "bad_claim": "the claim cannot be understood, or is no claim",
}
ERRORS = {**MODEL_ERRORS, **CLAIM_ERRORS}
PARTS = ("subject", "relation", "object", "attributions")
"""Of a triplet."""
Outcome = Literal["model error", "data set error", "both wrong", "uncertain", "right"]
OUTCOMES: tuple[Outcome, ...] = ("model error", "data set error", "both wrong", "uncertain", "right")


@dataclass(frozen=True)
class Judgement:
    """What one annotator said of one trajectory."""

    annotator: str
    key: str
    """The trajectory's."""
    gold: str
    verdict: str
    label: str
    """The annotator's own label of the claim, or UNCERTAIN."""
    errors: tuple[str, ...] = ()
    """Of ERRORS."""
    wrong_parts: tuple[str, ...] | None = None
    """Of PARTS: what the Decomposer got wrong; None where it was not judged."""

    @property
    def outcome(self) -> Outcome:
        """Who was wrong, by the annotator's label."""
        if self.label == UNCERTAIN:
            return "uncertain"
        if self.label == self.verdict:
            return "right" if self.label == self.gold else "data set error"
        return "model error" if self.label == self.gold else "both wrong"


@dataclass(frozen=True)
class PairAgreement:
    """Two annotators on the trajectories that both judged."""

    first: str
    second: str
    common: int
    identical: float | None
    """The share of equal labels; None where they judged nothing in common."""
    kappa: float | None
    """Cohen's; None where both gave one label only: agreement beyond chance is then undefined."""


def majority(judgements: Sequence[Judgement]) -> dict[str, Outcome | None]:
    """By trajectory, the outcome that more annotators found than any other; None where they are tied."""
    outcomes: dict[str, Counter[Outcome]] = defaultdict(Counter)
    for judgement in judgements:
        outcomes[judgement.key][judgement.outcome] += 1
    return {key: _most_common(counts) for key, counts in outcomes.items()}


def _most_common(counts: Counter[Outcome]) -> Outcome | None:
    (first, most), *others = counts.most_common(2)
    return None if others and others[0][1] == most else first


def wrong_part_shares(judgements: Sequence[Judgement]) -> dict[str, float]:
    """The share of judged decompositions in which each part is wrong, over the judgements; empty without any."""
    judged = [judgement.wrong_parts for judgement in judgements if judgement.wrong_parts is not None]
    return {part: sum(part in wrong for wrong in judged) / len(judged) for part in PARTS} if judged else {}


def pair_agreements(judgements: Sequence[Judgement]) -> list[PairAgreement]:
    """The agreement of every two annotators on labels."""
    labels: dict[str, dict[str, str]] = defaultdict(dict)
    for judgement in judgements:
        labels[judgement.annotator][judgement.key] = judgement.label
    return [_pair(first, second, labels[first], labels[second]) for first, second in combinations(sorted(labels), 2)]


def _pair(first: str, second: str, a: Mapping[str, str], b: Mapping[str, str]) -> PairAgreement:
    pairs = [(a[key], b[key]) for key in a if key in b]
    identical = sum(x == y for x, y in pairs) / len(pairs) if pairs else None
    return PairAgreement(first, second, len(pairs), identical, cohen_kappa(pairs))


def cohen_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """(observed - expected agreement) / (1 - expected), with each annotator's own shares (Cohen 1960). None for no
    pairs, or where both gave one and the same label alone."""
    if not pairs:
        return None
    n = len(pairs)
    first, second = Counter(x for x, _ in pairs), Counter(y for _, y in pairs)
    expected = sum(first[label] * second[label] for label in first) / n**2
    return None if expected == 1 else (sum(x == y for x, y in pairs) / n - expected) / (1 - expected)
