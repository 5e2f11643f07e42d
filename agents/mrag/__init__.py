"""mRAG, the multi-agent RAG of CIIR@LiveRAG 2025 (Salemi et al. 2025, arXiv 2506.10844): a coordinator and
eight agents.

Both algorithms are in `coordinator.py`; figures 15 to 21 are in `schemas.py` (fields) and `paper.py` (words, ours).

Budget: 30 calls of agents, 5 retrievals of one query, each conversation within its model's context. Price of one
question: one model call per coordinator turn, one per agent called, and for the searcher one for the query and one for
every two documents.

Where the paper's own parts disagree or are silent, our guard rails, and what the published code does otherwise:
docs/papers/mrag.md.
"""

from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.mrag.coordinator import gold_action, solve
from ratchet.agents.mrag.paper import BRIEF_PROMPTS, PAPER_PROMPTS
from ratchet.agents.mrag.state import AGENTS, Settings


def calls_of(settings: Settings) -> dict[str, Calls]:
    """Each agent once, the coordinator before each of them and at the end; the searcher writes a query and reads ten
    documents, two at a time, and hands on four."""
    own = {"planner": Calls(), "searcher": Calls(6, settings.documents_per_turn, 1)}
    agents: dict[str, Calls] = {agent: own.get(agent, Calls(1, 4)) for agent in settings.agents if agent != "finisher"}
    return {"coordinator": Calls(8, 0, 1), **agents}


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("coordinator", *(agent for agent in AGENTS if agent != "finisher")),
    prompts={**PAPER_PROMPTS, **BRIEF_PROMPTS},
    gold_action=gold_action,
    calls=calls_of,
)
