"""mRAG's two loops, and the brief prompts.

Algorithm 1 (`solve`): the coordinator picks an agent and its input, the agent acts, and its output joins the history.
Algorithm 2 (`search`): the searcher writes a query and judges two documents a turn; then it takes the next two of the
same query, writes another query, or ends.

`Brief` words the prompts of `style: brief`, for small models on small machines: a sentence or two a role, few tokens to
emit, and inputs filled in. It is meant for constrained decoding (system.malformed: constrain). The fixed words come
first and the question last, so all questions share a cached prefix. An agent that is called again gets only what is new
to it: the rest is in its conversation. What mattered most for SmolLM2-135M, when measured: a worked example, the best
document last (it copies from what is nearest), and the key `answer` where the paper has `response`. The paper's own
style is in `paper.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from agents.core.output import json_text
from agents.core.prompts.documents import BRIEF_DATA, QUESTION, one_line
from agents.core.prompts.template import FillIn, Prompt, PromptSet
from agents.core.tools import Answer, OutOfBudget, Tools
from agents.mrag.paper import Paper
from agents.mrag.prompt_style import FoundDocuments, PageJudgement, PromptStyle, Refusal, passage_text
from agents.mrag.schemas import (
    OUTPUTS,
    BriefAnswer,
    BriefQuery,
    BriefValidation,
    Fields,
    Query,
    Response,
    brief_action,
    brief_review,
)
from agents.mrag.settings import LENGTHS, Settings
from agents.mrag.state import Page, State
from ratchet.errors import UserError
from ratchet.records import Passage, Question


def gold_action(question: Question, settings: Settings) -> tuple[str, str]:
    """The response of the answerer, or of the reviser, who speaks in the answerer's conversation."""
    answer = question.gold_answer
    return "answerer", json_text(BriefAnswer(answer=answer) if settings.style == "brief" else Response(response=answer))


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """The latest response and the supporting documents, also where something ends the work before the finisher does."""
    _check_answerer_and_reviser(tools)
    state = State(question.text, tools, settings)
    style: PromptStyle = (Paper if settings.style == "paper" else Brief)(settings, tools.prompt)
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


async def _call_agent(
    agent: str, given: Fields | None, state: State, style: PromptStyle
) -> Fields | FoundDocuments | Refusal:
    if agent == "searcher":
        return FoundDocuments(tuple(await search(state, style, given)))
    if agent == "reviser" and not state.answered:
        state.tools.note("reviser", "refused: there is no response yet")
        return Refusal("There is no response to revise yet; the answerer comes first.")
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


async def search(state: State, style: PromptStyle, given: Fields | None) -> list[Passage]:
    """The documents judged relevant, in the order of finding; they also join `work.documents` as they are found.

    Where the paper is silent: a query without further documents (the index or its budget is at its end) is shown as
    such once, and the search ends if it is then asked for again.
    """
    tools, limit = state.tools, state.settings.max_search_turns
    dialogue = state.dialogue("searcher", style.system("searcher"), style.examples("searcher"))
    found: dict[str, Passage] = {}
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
            found[passage.id] = passage
            state.add_document(passage)
        turns += 1
        if judgement.end:
            break
        query = judgement.new_query or query
    return list(found.values())


# The prompts of `style: brief`

ABOUT = {
    "planner": "lists steps",
    "searcher": "finds documents",
    "reasoner": "thinks about the documents",
    "summarizer": "sums up the documents",
    "validator": "checks the response",
    "answerer": "writes the response from the documents",
    "reviser": "improves the response",
    "finisher": "ends, once there is a response",
}

TASKS = {
    "planner": 'List the steps that answer the question.\nFormat: {"plan": [..]}',
    # Fields named in prose: with a format line here, SmolLM2's queries were its placeholders or free invention.
    "searcher": "You search documents. Turn the question into a search_query. Then tell the relevance of each "
    "document, true or false, and if you end_search or need a new_search_query.",
    "reasoner": 'Think step by step about what the documents say on the question.\nFormat: {"analysis": [..]}',
    "summarizer": 'Sum up what the documents say on the question.\nFormat: {"summary": ..}',
    "validator": "Check if the response answers the question and the documents support it.\nFormat: "
    '{"is_groundedly_supported": .., "is_correctly_answered": .., "is_correctly_answered_feedback": ..}',
    "answerer": "Answer the question briefly from the documents.",
}
MATERIAL = "{{documents?}}\n{{notes?}}\n"
SETTING = "`style: brief`"
BRIEF_PROMPTS: dict[str, Prompt] = {
    "brief_coordinator.system": Prompt(
        f"Choose who acts next to answer the question. {BRIEF_DATA}\n" + "{{agents}}\nFormat: {{format}}",
        ("agents", "format"),
        SETTING,
    ),
    "brief_coordinator.user": Prompt(QUESTION, (), SETTING),
    "brief_report.user": Prompt("{{agent}}: {{output}}", ("agent",), SETTING),
    "brief_results.user": Prompt("{{documents}}", (), SETTING),
    **{f"brief_{agent}.system": Prompt(f"{BRIEF_DATA} {task}", (), SETTING) for agent, task in TASKS.items()},
    "brief_answerer.system": Prompt(f"{BRIEF_DATA} {TASKS['answerer']}\n\n" + "{{length?}}", ("length",), SETTING),
    **{f"brief_{agent}.user": Prompt(MATERIAL + QUESTION, (), SETTING) for agent in TASKS},
    "brief_validator.user": Prompt(MATERIAL + "Response: {{response}}\n" + QUESTION, (), SETTING),
    "brief_reviser.user": Prompt(MATERIAL + "Improve your response.\n" + QUESTION, (), SETTING),
}

EXAMPLE_DOCUMENTS = """\
Document: Pim: Pim is a horse that eats oats. It was trained by Jil Warrow.
Document: Tollen: Tollen is a horse that won the race of 1233. It was trained by Bram Ostley."""
EXAMPLE_QUESTION = "Question: Who trained Tollen?"
ANSWER_EXAMPLE = (f"{EXAMPLE_DOCUMENTS}\n{EXAMPLE_QUESTION}", '{"answer": "Bram Ostley"}')
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "searcher": (
        (EXAMPLE_QUESTION, '{"search_query": "Tollen"}'),
        (EXAMPLE_DOCUMENTS, '{"relevance": [false, true], "end_search": true}'),
    ),
    "answerer": (ANSWER_EXAMPLE,),
}


BRIEF_OUTPUTS: dict[str, type[Fields]] = {
    "validator": BriefValidation,
    "answerer": BriefAnswer,
    "reviser": BriefAnswer,
}

BRIEF_WORDS = PromptSet(BRIEF_PROMPTS).text


def document_line(passage: Passage) -> str:
    """A document in the brief prompts."""
    return f"Document: {one_line(passage_text(passage))}"


class Brief:
    """The brief style of prompts (`style: brief`)."""

    def __init__(self, settings: Settings, prompt: FillIn = BRIEF_WORDS) -> None:
        self.prompt = prompt
        self.offered, self.explanations = settings.offered, settings.explanations
        self.length = settings.length
        self.query: type[Query] | type[BriefQuery] = BriefQuery

    def system(self, agent: str) -> str:
        if agent == "coordinator":
            agents = "\n".join(f"{name}: {ABOUT[name]}" for name in self.offered)
            form = '{"agent": .., "reason": ..}' if self.explanations else '{"agent": ..}'
            return self.prompt("brief_coordinator.system", agents=agents, format=form)
        return self.prompt(f"brief_{agent}.system", length=LENGTHS[self.length])

    def examples(self, agent: str) -> tuple[tuple[str, str], ...]:
        return EXAMPLES.get(agent, ())

    def first_message(self, question: str) -> str:
        return self.prompt("brief_coordinator.user", question=question)

    def action_schema(self, offered: tuple[str, ...]) -> type[BaseModel]:
        return brief_action(offered, self.explanations)

    def read_action(self, action: Any) -> tuple[str, Fields | None]:
        return action.agent, None

    def agent_message(self, agent: str, given: Fields | None, state: State) -> str:
        documents, notes = state.unseen("answerer" if agent == "reviser" else agent)
        return self.prompt(
            f"brief_{agent}.user",
            documents="\n".join(document_line(p) for p in reversed(documents)),
            notes="\n".join(f"Note: {note}" for note in notes),
            response=one_line(state.response),
            question=state.question,
        )

    def output_schema(self, agent: str) -> type[Fields]:
        return BRIEF_OUTPUTS.get(agent, OUTPUTS[agent])

    def report_message(self, agent: str, output: Fields | FoundDocuments | Refusal) -> str:
        return self.prompt("brief_report.user", agent=agent, output=one_line(self.output_line(output)))

    def output_line(self, output: Fields | FoundDocuments | Refusal) -> str:
        """An output as one short line."""
        if isinstance(output, Refusal):
            return output.error
        if isinstance(output, FoundDocuments):
            names = [p.title or " ".join(p.text.split()[:8]) for p in output.documents]
            return f"found {'; '.join(dict.fromkeys(names))}" if names else "found nothing"
        if isinstance(output, BriefValidation):
            supported = "supported" if output.is_groundedly_supported else "not supported"
            correct = "correct" if output.is_correctly_answered else "not correct"
            return f"{supported}, {correct}. {output.is_correctly_answered_feedback}".strip()
        (value,) = output.model_dump().values()
        return " ".join(value) if isinstance(value, list) else str(value)

    def results_message(self, page: Page) -> str:
        documents = "\n".join(document_line(passage) for _, passage in reversed(page.passages)) or page.remark
        return self.prompt("brief_results.user", documents=documents)

    def review_schema(self, documents: int, last: bool) -> type[BaseModel]:
        return brief_review(documents, last)

    def read_judgement(self, review: Any, page: Page) -> PageJudgement:
        judged = zip(page.passages, reversed(review.root.relevance), strict=True)
        relevant = tuple(passage for (_, passage), yes in judged if yes)
        return PageJudgement(relevant, review.root.end_search, getattr(review.root, "new_search_query", ""))
