"""The brief style: a sentence or two a role, few tokens to emit, inputs filled in. For small models on small machines.

Meant for constrained decoding (system.malformed: constrain). The fixed words come first and the question last, so
all questions share a cached prefix. An agent that is called again is given only what is new to it: the rest is in
its conversation. What was measured to matter most for SmolLM2-135M: a worked example, the best document last (it
copies from what is nearest), and the key `answer` where the paper has `response`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from agents.mrag.schemas import (
    OUTPUTS,
    BriefAnswer,
    BriefQuery,
    BriefValidation,
    Fields,
    Query,
    brief_action,
    brief_review,
)
from agents.mrag.settings import Settings
from agents.mrag.style import Found, Refused, Verdict, passage_text
from agents.mrag.work import Page, Work
from ratchet.records import Passage

COORDINATOR = "Choose who acts next to answer the question.\n{agents}"

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

SYSTEM = {
    "planner": "List the steps that answer the question.",
    # Fields named in prose: with a format line here, SmolLM2's queries were its placeholders or free invention.
    "searcher": "You search documents. Turn the question into a search_query. Then tell the relevance of each "
    "document, true or false, and if you end_search or need a new_search_query.",
    "reasoner": "Think step by step about what the documents say on the question.",
    "summarizer": "Sum up what the documents say on the question.",
    "validator": "Check if the response answers the question and the documents support it.",
    "answerer": "Answer the question briefly from the documents.",
}
FORMAT = {
    "planner": '{"plan": [..]}',
    "reasoner": '{"analysis": [..]}',
    "summarizer": '{"summary": ..}',
    "validator": '{"is_groundedly_supported": .., "is_correctly_answered": .., "is_correctly_answered_feedback": ..}',
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
    return f"Document: {passage_text(passage)}"


class Brief:
    def __init__(self, settings: Settings) -> None:
        self.offered, self.explanations = settings.offered, settings.explanations
        self.query: type[Query] | type[BriefQuery] = BriefQuery

    def system(self, agent: str) -> str:
        if agent == "coordinator":
            agents = "\n".join(f"{name}: {ABOUT[name]}" for name in self.offered)
            form = '{"agent": .., "reason": ..}' if self.explanations else '{"agent": ..}'
            return f"{COORDINATOR.format(agents=agents)}\nFormat: {form}"
        return f"{SYSTEM[agent]}\nFormat: {FORMAT[agent]}" if agent in FORMAT else SYSTEM[agent]

    def examples(self, agent: str) -> tuple[tuple[str, str], ...]:
        return EXAMPLES.get(agent, ())

    def opening(self, question: str) -> str:
        return f"Question: {question}"

    def action(self, offered: tuple[str, ...]) -> type[BaseModel]:
        return brief_action(offered, self.explanations)

    def read(self, action: Any) -> tuple[str, Fields | None]:
        return action.agent, None

    def give(self, agent: str, given: Fields | None, work: Work) -> str:
        documents, notes = work.news("answerer" if agent == "reviser" else agent)
        lines = [document_line(p) for p in reversed(documents)]
        lines += [f"Note: {note}" for note in notes]
        if agent == "validator":
            lines.append(f"Response: {work.response}")
        if agent == "reviser":
            lines.append("Improve your response.")
        return "\n".join([*lines, f"Question: {work.question}"])

    def output(self, agent: str) -> type[Fields]:
        return BRIEF_OUTPUTS.get(agent, OUTPUTS[agent])

    def report(self, agent: str, output: Fields | Found | Refused) -> str:
        return f"{agent}: {self.digest(output)}"

    def digest(self, output: Fields | Found | Refused) -> str:
        """An output as one short line."""
        if isinstance(output, Refused):
            return output.error
        if isinstance(output, Found):
            names = [p.title or " ".join(p.text.split()[:8]) for p in output.documents]
            return f"found {'; '.join(dict.fromkeys(names))}" if names else "found nothing"
        if isinstance(output, BriefValidation):
            supported = "supported" if output.is_groundedly_supported else "not supported"
            correct = "correct" if output.is_correctly_answered else "not correct"
            return f"{supported}, {correct}. {output.is_correctly_answered_feedback}".strip()
        (value,) = output.model_dump().values()
        return " ".join(value) if isinstance(value, list) else str(value)

    def results(self, page: Page) -> str:
        return "\n".join(document_line(passage) for _, passage in reversed(page.passages)) or page.remark

    def review(self, documents: int, last: bool) -> type[BaseModel]:
        return brief_review(documents, last)

    def verdict(self, review: Any, page: Page) -> Verdict:
        judged = zip(page.passages, reversed(review.root.relevance), strict=True)
        relevant = tuple(passage for (_, passage), yes in judged if yes)
        return Verdict(relevant, review.root.end_search, getattr(review.root, "new_search_query", ""))
