"""mRAG, the multi-agent RAG of CIIR@LiveRAG 2025 (Salemi et al. 2025, arXiv 2506.10844): a coordinator and
eight agents.

Algorithm 1 (`solve`): the coordinator picks an agent and its input, the agent acts, and its output joins the history.
Algorithm 2 (`search`): the searcher writes a query and judges two documents a turn; then it takes the next two of the
same query, writes another query, or ends. Figures 15 to 21 are in `schemas.py` (fields) and `paper.py` (words, ours).

Budget: 30 calls of agents, 5 retrievals of one query, each conversation within its model's context. Price of one
question: one model call per coordinator turn, one per agent called, and for the searcher one for the query and one for
every two documents.

Where the paper's own parts disagree or are silent, our guard rails, and what the published code does otherwise:
docs/papers/mrag.md.
"""

from __future__ import annotations

from dataclasses import replace

from ratchet.agents.core.exploration import SearchFields
from ratchet.agents.core.output import json_text
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, OutOfBudget, Tools
from ratchet.agents.mrag.paper import BRIEF_PROMPTS, PAPER_PROMPTS, Brief, Output, Paper
from ratchet.agents.mrag.schemas import BriefAnswer, Fields, Refusal, Response
from ratchet.agents.mrag.state import AGENTS, Settings, State
from ratchet.core.errors import UserError
from ratchet.core.records import Passage, Question


def gold_action(question: Question, settings: Settings) -> tuple[str, str]:
    """The response of the answerer, or of the reviser, who speaks in the answerer's conversation."""
    answer = question.gold_answer
    return "answerer", json_text(BriefAnswer(answer=answer) if settings.style == "brief" else Response(response=answer))


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """The latest response and the supporting documents, also where something ends the work before the finisher does."""
    _check_answerer_and_reviser(tools)
    state = State(question.text, tools, settings)
    style = (Paper if settings.style == "paper" else Brief)(settings, tools.prompt)
    coordinator = state.dialogue("coordinator", style.system("coordinator"), style.examples("coordinator"))
    message, agent = style.first_message(question.text), ""
    for _ in range(settings.max_calls):
        agent, given = style.read_action(
            await tools.ask(coordinator, message, style.action_schema(_callable_agents(state, agent)))
        )
        if agent == "finisher":
            if not state.answered:
                tools.note("coordinator", "finished without a response")
            return tools.so_far
        output = await _call_agent(agent, given, state, style)
        message = style.report_message(agent, output)
        if agent in ("planner", "reasoner", "summarizer", "validator"):
            state.notes.append((agent, message))
    raise OutOfBudget("coordinator", f"stopped after {settings.max_calls} calls (max_calls)")


def _callable_agents(state: State, last: str) -> tuple[str, ...]:
    """The agents that the coordinator may call now."""
    if not state.settings.valid_moves:
        return state.settings.offered
    barred = {last} if state.answered else {last, "finisher", "reviser"}
    return tuple(agent for agent in state.settings.offered if agent not in barred)


async def _call_agent(agent: str, given: Fields | None, state: State, style: Paper) -> Output:
    settings = state.settings
    if settings.conversations == "fresh" and agent != "reviser":
        state.forget(agent)
    if agent == "searcher":
        found = await search(state, style, given)
        return tuple(found if settings.found == "call" else state.documents.values())
    if agent == "reviser" and not state.answered:
        state.tools.note("reviser", "refused: there is no response yet")
        return Refusal(error="There is no response to revise yet; the answerer comes first.")
    # The reviser goes on in the answerer's conversation (figure 21): its response is there, with the documents.
    owner = "answerer" if agent == "reviser" else agent
    dialogue = state.dialogue(owner, style.system(owner), style.examples(owner))
    output = await state.tools.ask(
        dialogue, style.agent_message(agent, given, state), style.output_schema(agent), role=agent
    )
    if owner == "answerer":
        state.answered = True
        (response,) = output.model_dump().values()
        state.tools.so_far = replace(state.tools.so_far, text=response)
    return output


def _check_answerer_and_reviser(tools: Tools) -> None:
    """The reviser speaks in the answerer's conversation, so both must be the same model, trained or frozen."""
    answerer, reviser = tools.role("answerer"), tools.role("reviser")
    if (answerer.model, answerer.trainable) != (reviser.model, reviser.trainable):
        raise UserError(
            "system.roles: answerer and reviser share one conversation, so they need the same model and trainable; "
            "give both the same values"
        )


async def search(state: State, style: Paper, given: Fields | None) -> list[Passage]:
    """The documents judged relevant, in the order of finding; they also join `work.documents` as they are found.

    Where the paper is silent: a query without further documents (the index or its budget is at its end) is shown as
    such once, and the search ends if it is then asked for again.
    """
    tools, limit = state.tools, state.settings.max_search_turns
    dialogue = state.dialogue("searcher", style.system("searcher"), style.examples("searcher"))
    relevant: dict[str, Passage] = {}
    dry: set[int] = set()
    query = (await tools.ask(dialogue, style.agent_message("searcher", given, state), style.query)).search_query
    turns = 0
    while True:
        if turns == limit:
            tools.note("searcher", f"stopped after {turns} turns (max_search_turns)")
            break
        page = await state.next_page(query)
        if page.remark:
            if page.query_id in dry:
                tools.note("searcher", f"stopped: {page.remark}")
                break
            dry.add(page.query_id)
        schema = style.review_schema(len(page.passages), last=turns + 1 == limit)
        review = await tools.ask(dialogue, style.results_message(page), schema)
        judgement = style.read_judgement(review, page)
        for passage in judgement.relevant:
            relevant[passage.id] = passage
            state.add_document(passage)
        turns += 1
        if judgement.end:
            break
        query = judgement.new_query or query
    return list(relevant.values())


def calls_of(settings: Settings) -> dict[str, Calls]:
    """Each agent once, the coordinator before each of them and at the end; the searcher writes a query and reads ten
    documents, two at a time, and hands on four: to the coordinator, which passes them on in its own words, and to the
    answerer. In the brief style every agent but the planner gets them, and the coordinator their titles."""
    found, is_brief = 4, settings.style == "brief"
    shown = {"planner": 0, "answerer": found}
    agents: dict[str, Calls] = {
        agent: Calls(1, shown.get(agent, found * is_brief)) for agent in settings.agents if agent != "finisher"
    }
    if "searcher" in agents:
        agents["searcher"] = Calls(6, settings.documents_per_turn, 1)
    return {"coordinator": Calls(8, 0 if is_brief else found / 8, 1), **agents}


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("coordinator", *(agent for agent in AGENTS if agent != "finisher")),
    prompts={**PAPER_PROMPTS, **BRIEF_PROMPTS},
    gold_action=gold_action,
    searches=SearchFields(
        go_on={"agent": "searcher", "end_search": False, "change_search_query": True},
        stop={"end_search": True},
        queries=("search_query", "new_search_query"),
        keep={"relevance": True, "is_relevant": True},
    ),
    calls=calls_of,
)
