"""What happened in a debate so far: who did what in which round, and how it scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ratchet.agents.core.claims import unique
from ratchet.agents.core.labels import Verdict
from ratchet.core.records import Passage

Kind = Literal["none", "rag", "search"]
"""An agent's tool."""
Scores = dict[str, float | None]
"""faithfulness and relevance; None: cannot be told."""
NAMES = ("faithfulness", "relevance")


@dataclass(frozen=True)
class Agent:
    """A debater and its kind of tool."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class Lookup:
    """What an agent searched for and what came of it; all empty for an agent without a tool."""

    query: str = ""
    passages: tuple[Passage, ...] = ()
    failure: str = ""
    """What the agent is told where its tool gave no answer."""


@dataclass(frozen=True)
class AgentTurn:
    """What an agent did in a round."""

    lookup: Lookup
    verdict: Verdict
    scores: Scores = field(default_factory=dict)


Round = dict[str, AgentTurn]
"""By the agent's name."""


def make_agents(pair: Sequence[Kind]) -> list[Agent]:
    """Two agents of one kind are told apart by number."""
    same = len(set(pair)) < len(pair)
    return [Agent(f"{kind} {number}" if same else kind, kind) for number, kind in enumerate(pair, 1)]


def passages_of(history: Sequence[Round]) -> tuple[Passage, ...]:
    """All that was read, each once."""
    return unique(passage for moves in history for move in moves.values() for passage in move.lookup.passages)


def mean_scores(history: Sequence[Round], agent: str, divide_by: Literal["rounds_played", "three"]) -> Scores:
    """For the judge: over the rounds in which they are known, or over three, whatever was played."""
    means: Scores = {}
    for name in NAMES:
        known = known_scores(history, agent, name)
        means[name] = sum(known) / (3 if divide_by == "three" else len(known)) if known else None
    return means


def known_scores(history: Sequence[Round], agent: str, name: str) -> list[float]:
    """Of the rounds in which it could be told."""
    return [value for moves in history if (value := moves[agent].scores.get(name)) is not None]
