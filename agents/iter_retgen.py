"""Iter-RetGen (Shao et al. 2023, arXiv 2305.15294): generation and retrieval take turns.

Each round retrieves with the question and the last round's output, and answers again from the new documents alone:
documents and output of earlier rounds are not shown. The last round's answer counts.

Budget: `rounds` model calls and as many retrievals (top 3); 3 rounds, as AwE sets it (docs/papers/awe.md, section 4.2).

Deviations
- The paper prompts with worked chains of thought and searches with them. Here, as in FlashRAG (which AwE compares
  with), the prompt is the plain reading one without examples, so a query is the question and a short answer. What is
  searched is the raw output, not the answer taken out of it.
- The paper reads five documents, AwE's comparison three: `documents`.
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
)
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.records import Question

PROMPTS = {"answerer.system": READ_IN_FORM, "answerer.user": Prompt(DOCUMENTS_AND_QUESTION)}


class Settings(FormSettings):
    """Rounds, and documents of a retrieval."""

    rounds: int = Field(3, gt=0)
    documents: int = Field(3, gt=0)


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Retrieve with the last answer and answer again, round by round."""
    said = ""
    for _ in range(settings.rounds):
        passages = await tools.search("answerer", f"{question.text} {said}".strip(), settings.documents)
        said = await tools.ask(*tools.begin("answerer", answer_form=settings.form, documents=documents_text(passages)))
        tools.so_far = Answer(final_answer(said), tuple(passages))
    return tools.so_far


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("answerer",),
    prompts=PROMPTS,
    calls=lambda settings: {"answerer": Calls(settings.rounds, settings.documents)},
)
