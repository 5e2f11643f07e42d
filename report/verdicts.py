"""Verdicts on labels for the page: the arms of every question set with labels, and each one's confusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluation.measures.verdicts import APART, Verdicts, label_scores
from evaluation.results import TRAINED, Arm, Results
from report.numbers import interval, number


def verdict_sets(suite: Sequence[Results]) -> list[dict[str, Any]]:
    """What the page's template lays out; nothing where no set has labels."""
    sets = []
    for results in suite:
        arms = [(arm, arm.verdicts) for arm in results.arms if arm.verdicts is not None]
        if arms:
            sets.append(
                {
                    "title": results.title or results.split,
                    "questions": results.questions,
                    "arms": [_arm(results, arm, verdicts) for arm, verdicts in arms],
                }
            )
    return sets


def _arm(results: Results, arm: Arm, verdicts: Verdicts) -> dict[str, Any]:
    comparison = results.comparison(arm.name)
    cells = []
    for name in ("accuracy", "macro_f1"):
        found, gain = arm.measures.get(name), comparison.measures.get(name) if comparison else None
        cells.append((number(found.mean if found else None, 3), interval(found, 3)))
        cells.append((number(gain.mean, 3, sign=True), interval(gain, 3)) if gain else ("", ""))
    rows = []
    for i, one in enumerate(label_scores(verdicts)):
        rows.append(
            {
                "label": one.name,
                "place": i,
                "counts": [f"{round(count, 2):g}" for count in verdicts.confusion[i]],
                "questions": f"{round(one.questions, 2):g}",
                "scores": [number(value, 3) for value in (one.precision, one.recall, one.f1)],
            }
        )
    return {
        "name": "trained" if arm.name == TRAINED else arm.name,
        "system": arm.system,
        "cells": cells,
        "labels": verdicts.labels,
        "apart": APART,
        "rows": rows,
    }
