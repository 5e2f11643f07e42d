"""The ledger for the page: a row for each stage, inputs and outputs as short digests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ratchet.progress import duration
from report.view import cut
from rounds.records import Entry

SHORT = 8
"""Characters of a digest that are shown; the complete one is in the page."""


def ledger_view(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Rounds in order, each with the rows of its stages as they were done."""
    last = {entry.key: i for i, entry in enumerate(entries)}
    rows: list[dict[str, Any]] = [
        {
            "round": entry.round,
            "stage": entry.key.title,
            "inputs": [(name, digest, digest[:SHORT]) for name, digest in entry.inputs.items()],
            "outputs": [(name, digest, digest[:SHORT]) for name, digest in entry.outputs.items()],
            "facts": facts_text(entry.facts),
            "began": entry.began[:16].replace("T", " "),
            "seconds": duration(entry.seconds),
            "machine": entry.machine,
            "superseded": last[entry.key] != i,
        }
        for i, entry in enumerate(entries)
    ]
    rows.sort(key=lambda row: row["round"])
    return [{"number": n, "rows": list(group)} for n, group in groupby(rows, key=lambda row: row["round"])]


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
