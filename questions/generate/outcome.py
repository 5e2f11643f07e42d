"""What came of all candidates: which are accepted, and the account of the rest. Pure functions of the records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from questions.generate.candidate import Candidate
from questions.generate.categories import Categories
from questions.generate.filters import Accepted
from questions.generate.plan import Wanted
from questions.generate.settings import SPLITS, Split
from ratchet.records import Record


class Outcome(Record):
    accepted: tuple[Candidate, ...]
    copies: dict[str, str]
    """Key of a good candidate to that of the accepted question that it nearly copies."""


def decide(candidates: Iterable[Candidate], near: float) -> Outcome:
    """Accept good candidates in order of attempt, split and number, whatever order they were made in.

    A question that nearly copies an accepted one is left out, across the splits as well.
    """
    accepted: dict[tuple[Split, int], Candidate] = {}
    copies: dict[str, str] = {}
    seen = Accepted(near)
    for c in sorted(candidates, key=lambda c: (c.attempt, SPLITS.index(c.split), c.number)):
        if c.dropped or (c.split, c.number) in accepted:
            continue
        original = seen.copy_of(c.question)
        if original is None:
            accepted[c.split, c.number] = c
            seen.add(c.key, c.question)
        else:
            copies[c.key] = original
    order = sorted(accepted, key=lambda place: (SPLITS.index(place[0]), place[1]))
    return Outcome(accepted=tuple(accepted[place] for place in order), copies=copies)


def account(
    outcome: Outcome, candidates: Sequence[Candidate], wanted: Sequence[Wanted], categories: Categories
) -> dict[str, Any]:
    """The numbers: per split, why candidates were dropped, and the categories' shares."""
    splits = {}
    for split in SPLITS:
        asked = sum(w.split == split for w in wanted)
        got = sum(c.split == split for c in outcome.accepted)
        tried = sum(c.split == split for c in candidates)
        splits[split] = {"wanted": asked, "accepted": got, "missing": asked - got, "candidates": tried}
    dropped = Counter(c.dropped for c in candidates if c.dropped)
    dropped["near copy of another question"] = len(outcome.copies)
    return {
        "splits": splits,
        "dropped": {reason: count for reason, count in dropped.most_common() if count},
        "copies": outcome.copies,
        "categories": shares(outcome, candidates, categories),
    }


def shares(
    outcome: Outcome, candidates: Sequence[Candidate], categories: Categories
) -> dict[str, dict[str, dict[str, float]]]:
    """Of each categorisation, the share of each category: wanted, among the accepted, and how many of it passed.

    `accepted` is among the accepted questions that have this categorisation, `passed` among its candidates.
    """
    accepted, tried = _tally(outcome.accepted), _tally(candidates)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for name, choices in categories.categorisations.items():
        total = accepted[name].total()
        table[name] = {
            category: {
                "wanted": choice.probability,
                **({"accepted": accepted[name][category] / total} if total else {}),
                **({"passed": accepted[name][category] / n} if (n := tried[name][category]) else {}),
            }
            for category, choice in choices.items()
        }
    return table


def _tally(candidates: Iterable[Candidate]) -> dict[str, Counter[str]]:
    tally: dict[str, Counter[str]] = defaultdict(Counter)
    for candidate in candidates:
        for name, category in candidate.categories.items():
            tally[name][category] += 1
    return tally


def lines(report: dict[str, Any]) -> list[str]:
    """The account as text."""
    text = [
        f"{split}: {n['accepted']} of {n['wanted']} questions, from {n['candidates']} candidates"
        for split, n in report["splits"].items()
        if n["wanted"]
    ]
    if report["dropped"]:
        text += ["dropped: " + ", ".join(f"{count} {reason}" for reason, count in report["dropped"].items())]
    if any(n["accepted"] for n in report["splits"].values()):
        text.append("categories, accepted (wanted):")
        for name, choices in report["categories"].items():
            parts = [
                f"{category} {100 * share['accepted']:.0f}% ({100 * share['wanted']:.0f}%)"
                for category, share in choices.items()
                if "accepted" in share
            ]
            text += [f"  {name}: {', '.join(parts)}"] if parts else []
    return text
