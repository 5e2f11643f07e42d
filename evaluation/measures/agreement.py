"""How far scores agree that a judge gave the same trajectories under two settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import correlation, fmean

import numpy as np
from numpy.typing import NDArray

from ratchet.core.records import Score
from ratchet.evaluation.measures.statistics import statistic_interval

SCALE = 4
"""The scores of a nugget: -1 to 2."""
Verdicts = dict[tuple[str, int], int]
"""By a nugget's text and the judge's run, its score, counted from 0."""


def agreement_rows(
    before: Mapping[tuple[str, str], Score],
    after: Mapping[tuple[str, str], Score],
    question_of: Mapping[str, str],
    seed: int,
) -> Iterator[tuple[str, str, str]]:
    """For each score of which the two differ, rows of (label, before, after): on the same trajectories, how far values
    and verdicts agree, and the calls that gave them. `question_of`: by trajectory key."""
    for name in dict.fromkeys(name for at, name in after if after[at, name] != before.get((at, name))):
        pairs = [(old, new) for at, new in after.items() if at[1] == name and (old := before.get(at))]
        values = [(old.value, new.value) for old, new in pairs if old.value is not None and new.value is not None]
        told = "-"
        if values:
            varies = all(len(set(side)) > 1 for side in zip(*values, strict=True))
            r = f"{correlation(*zip(*values, strict=True)):.3f}" if varies else "-"
            told = f"mean difference {fmean(abs(old - new) for old, new in values):.3f}, correlation {r}"
        yield f"{name} of {len(values)} trajectories", "", told
        asked = [(old, new) for old, new in pairs if not (old.equal_to or new.equal_to)]
        if not asked:
            continue
        yield f"{name}: judge calls an answer", _calls(old for old, _ in asked), _calls(new for _, new in asked)
        cells: dict[str, tuple[list[int], list[int], list[int]]] = {}
        for old, new in asked:
            first, second = _verdicts(old), _verdicts(new)
            compared = (first, second), (first, _of_next_run(first)), (second, _of_next_run(second))
            own = cells.setdefault(question_of[new.trajectory], ([], [], []))
            for counted, (one, other) in zip(own, compared, strict=True):
                counted += [one[at] * SCALE + other[at] for at in one.keys() & other.keys()]
        both, left, right = (_agreement([own[place] for own in cells.values()], seed) for place in range(3))
        if both:
            yield f"{name}: equal verdicts", "", both
        if left and right:
            yield f"{name}: equal verdicts of two runs", left, right


def _verdicts(score: Score) -> Verdicts:
    """The readable verdicts on nuggets, of single calls and of lists."""
    texts: dict[int | None, list[str]] = {
        part.get("run"): [nugget["aspect"] for nugget in part["nuggets"]]
        for part in score.verdicts
        if part["part"] == "nuggets" and "nuggets" in part
    }
    found: Verdicts = {}
    for part in score.verdicts:
        if part["part"] in ("nugget", "nugget_list"):
            own = texts.get(part["run"], texts.get(None, []))
            scores = part["scores"] or () if part["part"] == "nugget_list" else (part["score"],)
            named = zip(own[part["nugget"] :], scores, strict=False)
            found |= {(text, part["run"]): given + 1 for text, given in named if given is not None}
    return found


def _of_next_run(verdicts: Verdicts) -> Verdicts:
    """Each run's verdicts under the number of the run before."""
    return {(text, run - 1): given for (text, run), given in verdicts.items()}


def _calls(scores: Iterable[Score]) -> str:
    parts = [[part for part in score.verdicts if "text" in part] for score in scores]
    calls, counts = sum(map(len, parts)), [part["tokens"] for own in parts for part in own if part.get("tokens")]
    again = sum(part["part"] == "nugget_list" and part["scores"] is None for own in parts for part in own)
    told = f"{calls / len(parts):.1f}"
    if counts:
        prompt, new = (sum(count[0] - count[1] for count in counts), sum(count[2] for count in counts))
        told += f", {prompt / len(parts):,.0f} prompt and {new / len(parts):,.0f} new tokens"
    return told + (f", {again} lists asked for again" if again else "")


def _agreement(cells: Iterable[list[int]], seed: int) -> str:
    """The share of equal verdicts and Cohen's kappa, with its 95% bootstrap interval over questions; empty without
    verdicts. `cells`: for each question, SCALE times one verdict plus the other, of each pair."""
    rows = np.array([np.bincount(own, minlength=SCALE**2) for own in cells if own], np.float64)
    if not len(rows):
        return ""
    kappa, total = statistic_interval(rows, _kappa, seed), rows.sum(axis=0)
    told = f"{total[:: SCALE + 1].sum() / total.sum():.1%} of {total.sum():,.0f}"
    interval = "" if kappa.low is None else f" [{kappa.low:.2f}, {kappa.high:.2f}]"
    return told if kappa.mean is None else f"{told}, Cohen's kappa {kappa.mean:.2f}{interval}"


def _kappa(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cohen 1960, A coefficient of agreement for nominal scales; NaN where all verdicts are one."""
    tables = rows.reshape(-1, SCALE, SCALE) / rows.sum(axis=1)[:, None, None]
    equal = np.trace(tables, axis1=1, axis2=2)
    by_chance = (tables.sum(axis=1) * tables.sum(axis=2)).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return (equal - by_chance) / (1 - by_chance)
