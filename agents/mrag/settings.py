"""mRAG's own part of the config; the defaults are the paper's (Salemi et al. 2025, arXiv 2506.10844,
appendix D.4)."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from ratchet.core.config import Section

Agent = Literal["planner", "searcher", "reasoner", "summarizer", "validator", "answerer", "reviser", "finisher"]
AGENTS: tuple[Agent, ...] = get_args(Agent)
ALWAYS = ("answerer", "finisher")
"""Without these two no question could be answered."""
Length = Literal["any", "concise", "long"]
LENGTHS: dict[Length, str] = {
    "any": "",
    "concise": "Write at most 100 words.",
    "long": "Write a long response that covers every aspect of the question in detail.",
}
"""What the author of a response is told about its length."""


class Settings(Section):
    """mRAG's budgets, the agents on offer and the style of the prompts."""

    max_calls: int = Field(30, gt=0)
    """Calls to agents that the coordinator may make."""
    documents_per_turn: int = Field(2, gt=0)
    max_same_query: int = Field(5, gt=0)
    """Most retrievals of one query, the first included, in the whole trajectory."""
    max_search_turns: int | None = Field(None, gt=0)
    """Turns of one call of the searcher; the paper sets no limit beyond max_same_query."""
    agents: tuple[Agent, ...] = AGENTS
    """Those on offer; answerer and finisher always are."""
    valid_moves: bool = False
    """Offer only what can change something: finisher and reviser once there is a response, and no agent twice in a
    row. The paper leaves it to the coordinator to learn that; a small one repeats itself to the end of its budget."""
    explanations: bool = True
    """Ask for the reason and explanation fields; small models do better without."""
    style: Literal["paper", "brief"] = "paper"
    """brief: prompts of a sentence or two, and inputs filled in for the coordinator, for small models."""

    conversations: Literal["kept", "fresh"] = "kept"
    """Whether an agent that is called again remembers. kept: it goes on in its conversation, as in table 2. fresh: it
    sees its input alone, as section 3.2 assumes of all agents; the coordinator keeps its history (algorithm 1), and the
    reviser has the response that it revises."""
    question: Literal["coordinator", "user"] = "coordinator"
    """The question that an agent is given: as the coordinator writes it (figures 15 to 21), or the user's own, as in
    the published code."""
    found: Literal["call", "all"] = "call"
    """The documents that the searcher reports: the relevant ones of this call (algorithm 2), or all since the
    trajectory began, as in the published code."""
    length: Length = "any"
    """The length of the response that answerer and reviser are asked for. any: nothing is said, as in figure 21.
    concise: at most 100 words, the switch of the paper's published code. long: a long response; section 4 reports that
    asking for longer responses alone raised nugget recall from 0.528 to 0.584."""

    @property
    def offered(self) -> tuple[Agent, ...]:
        return tuple(agent for agent in AGENTS if agent in self.agents or agent in ALWAYS)
