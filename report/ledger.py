"""The ledger for the page: a row for each stage, inputs and outputs as short digests, equal ones in one colour."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from evaluation.results import BASE
from ratchet.progress import duration
from report.view import cut
from rounds.records import Entry

SHORT = 8
"""Characters of a digest that are shown; the complete one is in the page."""
UNMARKED = {"config"}
"""Inputs that every stage reads and none writes."""
GOLDEN_ANGLE = 137.5
"""Degrees from one hue to the next: neighbours in the ledger get hues that are far apart."""


@dataclass(frozen=True)
class Link:
    """An input or output of a stage, by its digest."""

    name: str
    digest: str
    hue: int | None
    """Degrees; None where the digest occurs once in the ledger, so that colour always means a link."""

    @property
    def short(self) -> str:
        return self.digest[:SHORT]


def ledger_view(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Rounds in order, each with the rows of its stages as they were done."""
    counts = Counter(
        digest
        for entry in entries
        for name, digest in (*entry.inputs.items(), *entry.outputs.items())
        if name not in UNMARKED and digest != BASE
    )
    linked = [digest for digest, count in counts.items() if count > 1]
    hues = {digest: round(i * GOLDEN_ANGLE) % 360 for i, digest in enumerate(linked)}

    def links(named: dict[str, str]) -> list[Link]:
        return [Link(name, digest, hues.get(digest)) for name, digest in named.items()]

    last = {entry.key: i for i, entry in enumerate(entries)}
    rows: list[dict[str, Any]] = [
        {
            "round": entry.round,
            "stage": entry.key.title,
            "inputs": links(entry.inputs),
            "outputs": links(entry.outputs),
            "facts": facts_text(entry.facts),
            "began": entry.began[:16].replace("T", " "),
            "seconds": duration(entry.seconds),
            "machine": entry.machine,
            "superseded": last[entry.key] != i,
        }
        for i, entry in enumerate(entries)
    ]
    rows.sort(key=lambda row: row["round"])
    return [{"number": n, "rows": list(found)} for n, found in groupby(rows, key=lambda row: row["round"])]


def facts_text(facts: dict[str, Any]) -> str:
    """'trajectories 800 · mean reward 0.131'."""
    return " · ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in facts.items())


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(inner)}" for name, inner in value.items())
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 200)
