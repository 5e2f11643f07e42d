"""mRAG, the multi-agent RAG of CIIR@LiveRAG 2025 (Salemi et al. 2025, arXiv 2506.10844): a coordinator and
eight agents.

Both algorithms are in `coordinator.py`; figures 15 to 21 are in `schemas.py` (fields) and `paper.py` (words, ours).

Budget: 30 calls of agents, 5 retrievals of one query, each conversation within its model's context. Price of one
question: one model call per coordinator turn, one per agent called, and for the searcher one for the query and one for
every two documents.

Where the paper's own parts disagree or are silent
- The answerer's "plan" (figure 21) is the coordinator's "guidance" (figure 15); its "supporting information" is all
  relevant documents of the trajectory (table 3). The summarizer gets what the coordinator passes on (figure 18) and
  not, as in table 2, the documents as well.
- The reviser is a further turn of the answerer's conversation: its prompt (figure 21) holds nothing but the suggestion.
- "Reuse the same query up to 5 times" (D.4) is read as five retrievals of one query in all, as in section 5 and in
  table 2, which shows documents 1 to 10. Counted for a query across the whole trajectory, blanks and case apart, so
  changing to and fro does not escape it.
- A change of query with an empty new query keeps the query. When both change and end are set, the search ends
  (algorithm 2).
- Query ids count the different queries of a trajectory, document ids the documents as they come up.

Guard rails of ours (the published code has none)
- The reviser before any response is refused; the refusal is reported to the coordinator and counts as a call.
- A query whose documents are used up is shown as such once; asking for it again ends the search.
- A document id that was not shown is ignored.
- With `valid_moves`, finisher and reviser are offered only once there is a response (off by default).
- Budget used up, or an action malformed: the response so far is the answer, with the documents so far and the status
  out_of_budget or unparsed.
"""

from agents.core.spec import SystemSpec
from agents.mrag.brief import BRIEF_PROMPTS
from agents.mrag.coordinator import gold_action, solve
from agents.mrag.paper import PAPER_PROMPTS
from agents.mrag.settings import AGENTS, Settings

SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("coordinator", *(agent for agent in AGENTS if agent != "finisher")),
    prompts={**PAPER_PROMPTS, **BRIEF_PROMPTS},
    gold_action=gold_action,
)
