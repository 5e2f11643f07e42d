"""How a run plays a system, and one trajectory of it."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.core.records import Question


@dataclass(frozen=True)
class RunContext:
    """How a run plays a system: the same for every question of it."""

    temperature: float
    frozen_temperature: float
    """Of the roles that are not trained."""
    top_p: float
    adapter: str | None
    """A LoRA folder for the trainable roles; None: the base model."""
    policy: str
    """'base', or the adapter's digest."""
    scope: str = "train"
    """Whose evidence memory is read and written: evidence never crosses from one scope to another by itself. The
    sampling pool adds a key to the name given here, of all that the run samples
    (`sampling.passes.with_memory_scope`)."""


@dataclass(frozen=True)
class Job:
    """One trajectory to sample: its question, sample number, content key and seed."""

    question: Question
    sample: int
    key: str
    seed: int
    place: int = 0
    """Of the question among those of the pass."""
