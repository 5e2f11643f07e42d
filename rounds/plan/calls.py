"""How often each system calls its models before a run has measured it: between its least and its most calls.

Where a system stops once it has what it needs, the mean of its least and most rounds is assumed. The calls of every
system, least and most, are played in tests/agents/test_budgets.py, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CLAIMS = 3
"""Claims of a text, where a system draws them from it."""
SUPPORTING = 4
"""Passages that mRAG's searcher hands on."""


@dataclass(frozen=True)
class Turns:
    """The calls of one role in one trajectory."""

    calls: float = 1.0
    passages: float = 0.0
    """Shown to it at each call."""
    conversations: float | None = None
    """None: each call is one of its own."""


Roles = dict[str, Turns]


def _awe(settings: Any) -> Roles:
    reading = Turns(1, settings.documents)
    knowledge = {"knowledge": Turns(), "knowledge_reader": reading}
    retrieval = {"retrieval_drafter": reading, "retrieval_reader": reading}
    if settings.paths != "both":
        return knowledge if settings.paths == "knowledge" else retrieval
    return {**knowledge, **retrieval, "knowledge_advocate": reading, "retrieval_advocate": reading, "judge": Turns()}


def _drag(settings: Any) -> Roles:
    queries, answers = (1 + settings.query_rounds) / 2, settings.answer_rounds
    search = Turns(queries, settings.documents)
    roles = {"query_proponent": search, "query_opponent": search, "judge": Turns(queries)}
    debate = {"proponent": Turns(answers, settings.documents, 1), "opponent": Turns(answers, 0, 1)}
    return {**roles, **debate, "moderator": Turns(answers)}


def _madke(settings: Any) -> Roles:
    rounds, pool = (1 + settings.rounds) / 2, sum(settings.pool.values())
    each = settings.agents * rounds
    debate = {"selector": Turns(each, pool), "debater": Turns(each, settings.choose)}
    return {**debate, "judge": Turns(rounds), "summariser": Turns()}


def _tool_mad(settings: Any) -> Roles:
    ends_early = settings.stability or settings.without_scores == "agreement"
    rounds = (1 + settings.rounds) / 2 if ends_early else settings.rounds
    calls: dict[str, float] = {"judge": 1.0}

    def add(role: str, number: float) -> None:
        calls[role] = calls.get(role, 0) + number

    for kind in settings.agents:
        add(kind, rounds)
        if settings.query_formulation and kind != "none":
            add(f"{kind}_query", rounds)
        if kind in settings.keywords:
            add("keywords", rounds)
        if settings.stability:  # statements, their verdicts, and questions; an agent without documents has the last
            add("scorer", rounds * (settings.questions + 2 * (kind != "none")))
    return {role: Turns(each, settings.documents * (role in ("rag", "search"))) for role, each in calls.items()}


def _facts(settings: Any, checking: Roles, extracting: tuple[str, ...]) -> Roles:
    """The roles that check one claim, for each of those that are drawn from the text."""
    if not settings.extract:
        return checking
    checked = {role: Turns(CLAIMS * turns.calls, turns.passages) for role, turns in checking.items()}
    return {**dict.fromkeys(extracting, Turns()), **checked}


def _mrag(settings: Any) -> Roles:
    """Each of seven agents once, the coordinator before each of them and at the end; the searcher writes a query and
    reads ten documents, two at a time."""
    own = {"planner": Turns(), "searcher": Turns(6, settings.documents_per_turn, 1)}
    return {"coordinator": Turns(8, 0, 1)} | {
        agent: own.get(agent, Turns(1, SUPPORTING)) for agent in settings.agents if agent != "finisher"
    }


SYSTEMS: dict[str, Callable[[Any], Roles]] = {
    "awe": _awe,
    "cot": lambda settings: {"thinker": Turns(1, settings.documents)},
    "drag": _drag,
    "factcheck_gpt": lambda settings: _facts(
        settings, {"searcher": Turns(), "stance": Turns(settings.evidence, 1)}, ("extractor", "filter")
    ),
    "factool": lambda settings: _facts(settings, {"searcher": Turns(), "verifier": Turns(1, 4)}, ("extractor",)),
    "fire": lambda settings: {"verifier": Turns(1 + settings.steps / 2, settings.documents)},
    "flare": lambda settings: {"answerer": Turns(settings.iterations, settings.documents)},
    "ircot": lambda settings: {
        "reasoner": Turns((1 + settings.sentences) / 2, settings.pool / 2),
        **({"reader": Turns(1, settings.pool)} if settings.reader == "always" else {}),
    },
    "iter_retgen": lambda settings: {"answerer": Turns(settings.rounds, settings.documents)},
    "mad": lambda settings: {"debater": Turns(settings.agents * settings.rounds, 0, settings.agents)},
    "mad_drag": lambda settings: {
        "debater": Turns(settings.agents * settings.rounds, 0, settings.agents),
        "moderator": Turns(settings.rounds),
    },
    "mad_liang": lambda settings: {
        **dict.fromkeys(("affirmative", "negative", "moderator"), Turns((1 + settings.rounds) / 2, 0, 1)),
        "judge": Turns(),
    },
    "madke": _madke,
    "mermaid": lambda settings: {
        **({"decomposer": Turns()} if settings.decomposer else {}),
        "executor": Turns((1 + settings.steps) / 2, settings.documents, 1),
    },
    "mrag": _mrag,
    "naive_rag": lambda settings: {"answerer": Turns(1, settings.documents)},
    "react": lambda settings: {"actor": Turns(1 + settings.steps / 2, settings.documents, 1)},
    "sure": lambda settings: {
        "proposer": Turns(1, settings.documents),
        "summarizer": Turns(2, settings.documents),
        "validator": Turns(2),
        "ranker": Turns(2),
    },
    "tool_mad": _tool_mad,
    "vanilla_rag": lambda settings: {"answerer": Turns(1, settings.documents)},
}
"""By system; in any other each role is called once."""
