"""What the loop over rounds writes down."""

from __future__ import annotations

from typing import Any

from evaluation.results import Difference
from ratchet.records import Record


class Entry(Record):
    """One finished stage, a line of ledger.jsonl: what went in and what came out, by content.

    Names of inputs and outputs are the same in all entries, so following digests leads from an evaluation back to the
    questions: "questions", "index", "trajectories", "scores", "selection", "rows", "adapter", "evaluation",
    "promotion". An input "adapter" is the one that sampled, was trained on or was evaluated, "parent" the one that it
    is compared with; "config" is what of the config the stage depends on and may change on a run.
    """

    round: int
    stage: str
    """As `selftrain.py` calls it: "sample", "score and select", "train", "evaluate", "promote", "test"..."""
    inputs: dict[str, str]
    outputs: dict[str, str]
    facts: dict[str, Any]
    """Counts and measures worth reading, such as {"trajectories": 800}."""
    began: str
    """UTC, ISO 8601."""
    seconds: float
    machine: str


class Promotion(Record):
    """round-N/promotion.json: whether a round's adapter takes its parent's place, and why."""

    round: int
    candidate: str
    """The trained adapter's digest; empty where the round trained none, because nothing was kept."""
    parent: str
    """The digest of the adapter that sampled, or 'base'."""
    split: str
    measure: str
    base: float | None
    """The base model's mean on the same questions."""
    difference: Difference
    """Candidate against parent."""
    promoted: bool
    reason: str
    """One sentence with the numbers."""
