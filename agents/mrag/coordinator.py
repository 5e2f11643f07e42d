"""Algorithm 1: the coordinator picks an agent and its input, the agent acts, its output joins the history."""

from __future__ import annotations

from dataclasses import replace

from agents.core.tools import Answer, OutOfBudget, Tools
from agents.mrag.brief import Brief
from agents.mrag.paper import Paper
from agents.mrag.schemas import Fields
from agents.mrag.searcher import search
from agents.mrag.settings import AGENTS, Settings
from agents.mrag.style import Found, Refused, Style
from agents.mrag.work import Work
from ratchet.errors import UserError
from ratchet.records import Question

ROLES = ("coordinator", *(agent for agent in AGENTS if agent != "finisher"))


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """The latest response and the supporting documents, also where something ends the work before the finisher does."""
    _one_writer(tools)
    work = Work(question.text, tools, settings)
    style: Style = Paper(settings) if settings.style == "paper" else Brief(settings)
    coordinator = work.dialogue("coordinator", style.system("coordinator"), style.examples("coordinator"))
    message, agent = style.opening(question.text), ""
    for _ in range(settings.max_calls):
        agent, given = style.read(await tools.ask(coordinator, message, style.action(_moves(work, agent))))
        if agent == "finisher":
            if not work.answered:
                tools.note("coordinator", "finished without a response")
            return tools.so_far
        output = await _call(agent, given, work, style)
        message = style.report(agent, output)
        if agent in ("planner", "reasoner", "summarizer", "validator"):
            work.notes.append((agent, message))
    raise OutOfBudget("coordinator", f"stopped after {settings.max_calls} calls (max_calls)")


def _moves(work: Work, last: str) -> tuple[str, ...]:
    """The agents that the coordinator may call now."""
    if not work.settings.valid_moves:
        return work.settings.offered
    barred = {last} if work.answered else {last, "finisher", "reviser"}
    return tuple(agent for agent in work.settings.offered if agent not in barred)


async def _call(agent: str, given: Fields | None, work: Work, style: Style) -> Fields | Found | Refused:
    if agent == "searcher":
        return Found(tuple(await search(work, style, given)))
    if agent == "reviser" and not work.answered:
        work.tools.note("reviser", "refused: there is no response yet")
        return Refused("There is no response to revise yet; the answerer comes first.")
    # The reviser goes on in the answerer's conversation (figure 21): its response is there, with the documents.
    owner = "answerer" if agent == "reviser" else agent
    dialogue = work.dialogue(owner, style.system(owner), style.examples(owner))
    output = await work.tools.ask(dialogue, style.give(agent, given, work), style.output(agent), role=agent)
    if owner == "answerer":
        work.answered = True
        (response,) = output.model_dump().values()
        work.tools.so_far = replace(work.tools.so_far, text=response)
    return output


def _one_writer(tools: Tools) -> None:
    """The reviser speaks in the answerer's conversation, so both must be the same model, trained or frozen."""
    answerer, reviser = tools.role("answerer"), tools.role("reviser")
    if (answerer.model, answerer.trainable) != (reviser.model, reviser.trainable):
        raise UserError(
            "system.roles: answerer and reviser share one conversation, so they need the same model and trainable; "
            "give both the same values"
        )
