"""What a system returns, and the two ways in which it ends without an answer of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ratchet.core.records import Passage, Turn


@dataclass(frozen=True)
class Answer:
    """What a system returns. A system that met its own budget says so and gives what it has."""

    text: str
    passages: tuple[Passage, ...] = ()
    """Supporting documents. Those that no model was shown are left out of the record (`agents.core.checks`)."""
    status: Literal["finished", "out_of_budget", "unparsed"] = "finished"
    error: str = ""
    """Why it is unparsed or out of budget: the role and the cause."""
    explanation: str = ""
    """The reasons for a label or a short answer: what faithfulness is measured of."""
    candidates: Mapping[str, str] = field(default_factory=dict)
    """Answers that the system chose between, by the name of what proposed them."""
    turns: tuple[Turn, ...] = ()
    """A debate's turns, for whoever reads it."""
    stopped: str = ""
    """Why a debate or a loop ended."""


class _Ended(Exception):
    def __init__(self, role: str, error: str) -> None:
        super().__init__(f"{role}: {error}")
        self.role, self.error = role, error


class Unparsed(_Ended):
    """A role's action broke its schema and the malformed policy is exhausted."""


class OutOfBudget(_Ended):
    """A conversation has no room left in its model's context, or a system has used up a budget of its own."""
