"""Naive-RAG, the retrieve-then-read baseline of AwE and FlashRAG (docs/papers/awe.md, section 4.2).

The question is the query; one call reads the documents and answers. Budget: one model call, one retrieval (top 3). The
answer is what stands behind "The answer is:", else the whole output. It differs from `vanilla_rag` (the baseline of
mRAG) in that it answers in few words of free text; the words of the prompt are ours.
"""

from __future__ import annotations

from pydantic import Field

from ratchet.agents.core.prompts import (
    DOCUMENTS_AND_QUESTION,
    READ_IN_FORM,
    FormSettings,
    Prompt,
    documents_text,
    final_answer,
    in_form,
)
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.records import Question

PROMPTS = {"answerer.system": READ_IN_FORM, "answerer.user": Prompt(DOCUMENTS_AND_QUESTION)}


class Settings(FormSettings):
    """The documents that are read."""

    documents: int = Field(3, gt=0)


def gold_action(question: Question, settings: Settings) -> tuple[str, str]:
    """The answer in the form that the prompt asks for."""
    return "answerer", in_form(question.gold_answer, settings.answer_form)


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Retrieve, then answer from the documents."""
    passages = await tools.search("answerer", question.text, settings.documents)
    said = await tools.ask(*tools.begin("answerer", answer_form=settings.form, documents=documents_text(passages)))
    return Answer(final_answer(said), tuple(passages))


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("answerer",),
    prompts=PROMPTS,
    gold_action=gold_action,
    calls=lambda settings: {"answerer": Calls(1, settings.documents)},
)
