"""The brief style (`style: brief`), for small models on small machines.

A role has a sentence or two and few tokens to emit, and its inputs are filled in. It is meant for constrained decoding
(system.malformed: constrain). The fixed words come first and the question last, so all questions share a cached prefix.
An agent that is called again gets only what is new to it: the rest is in its conversation. What mattered most for
SmolLM2-135M, when measured: a worked example, the best document last (it copies from what is nearest), and the key
`answer` where the paper has `response`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from ratchet.agents.core.prompts import BRIEF_DATA, QUESTION, Prompt, one_line, passage_text
from ratchet.agents.mrag.paper import Output, PageJudgement, Paper
from ratchet.agents.mrag.schemas import (
    OUTPUTS,
    BriefAnswer,
    BriefQuery,
    BriefValidation,
    Fields,
    Query,
    brief_action,
    brief_review,
)
from ratchet.agents.mrag.state import Page, State
from ratchet.core.records import Passage

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


def document_line(passage: Passage) -> str:
    """A document in the brief prompts."""
    return f"Document: {one_line(passage_text(passage))}"


class Brief(Paper):
    """The brief style of prompts (`style: brief`)."""

    @property
    def query(self) -> type[Query] | type[BriefQuery]:
        return BriefQuery

    def system(self, agent: str) -> str:
        if agent == "coordinator":
            agents = "\n".join(f"{name}: {ABOUT[name]}" for name in self.offered)
            form = '{"agent": .., "reason": ..}' if self.explanations else '{"agent": ..}'
            return self.prompt("brief_coordinator.system", agents=agents, format=form)
        return self.prompt(f"brief_{agent}.system", length=self.length)

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

    def report_message(self, agent: str, output: Output) -> str:
        return self.prompt("brief_report.user", agent=agent, output=one_line(self.output_line(output)))

    def output_line(self, output: Output) -> str:
        """An output as one short line."""
        if isinstance(output, tuple):
            names = [p.title or " ".join(p.text.split()[:8]) for p in output]
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
