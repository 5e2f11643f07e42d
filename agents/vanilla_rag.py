"""The retrieve-then-read baseline of mRAG (Salemi et al. 2025, arXiv 2506.10844, appendix B, figure 14).

Two documents for the question itself, then one model call that reads them. The paper plays it with the
answerer's model (Falcon3-10B-Instruct), nucleus sampling at temperature 0.1, and mRAG's retriever. Output is
{"response"}. All documents that were read are returned as supporting ones. `style: brief` is what
mRAG's answerer is given in its brief style, example included. The words of the prompts are ours.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ratchet.agents.core.output import AnyText, JsonObject, json_text
from ratchet.agents.core.prompts import DATA, QUESTION, Prompt, one_line, passage_text
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.agents.mrag.paper import ANSWER_EXAMPLE, BRIEF_PROMPTS, document_line
from ratchet.agents.mrag.schemas import BriefAnswer
from ratchet.agents.mrag.state import LENGTHS, Length
from ratchet.core.config import Section
from ratchet.core.records import Question

INSTRUCTIONS = """\
You are an assistant who answers questions with the help of documents. Answer to the point, and state nothing that the \
documents do not support.

You are given
- "question": the question that is to be answered
- "supporting documents": documents that help to answer it
and write one JSON object with
- "response": the answer to the question, to the point and supported by the documents

Write that one JSON object and nothing else."""
PROMPTS = {
    "answerer.system": Prompt(INSTRUCTIONS + "\n\n{{length?}}", ("length",), "figure 14"),
    "answerer.user": Prompt(QUESTION + f"\nSupporting documents {DATA}:\n" + "{{documents}}", note="figure 14"),
    "brief_answerer.system": BRIEF_PROMPTS["brief_answerer.system"],
    "brief_answerer.user": Prompt("{{documents?}}\n" + QUESTION, note="`style: brief`"),
}


class Settings(Section):
    """The wording of the prompt, and the documents that are read."""

    style: Literal["paper", "brief"] = "paper"
    length: Length = "any"
    """The length of the answer that is asked for, as in `mrag`."""
    documents: int = Field(2, gt=0)


class Response(JsonObject):
    """The answer as the paper's prompt asks for it."""

    response: AnyText


def gold_action(question: Question, settings: Settings) -> tuple[str, str]:
    """The answer in the JSON that the prompt asks for."""
    answer = question.gold_answer
    return "answerer", json_text(BriefAnswer(answer=answer) if settings.style == "brief" else Response(response=answer))


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Retrieve, then answer from the documents."""
    passages = await tools.search("answerer", question.text, settings.documents)
    if settings.style == "brief":
        system = tools.prompt("brief_answerer.system", length=LENGTHS[settings.length])
        dialogue = tools.dialogue("answerer", system, (ANSWER_EXAMPLE,))
        documents = "\n".join(map(document_line, reversed(passages)))
        message = tools.prompt("brief_answerer.user", documents=documents)
        return Answer((await tools.ask(dialogue, message, BriefAnswer)).answer.strip(), tuple(passages))
    documents = "\n".join(f"Document {i}: {one_line(passage_text(p))}" for i, p in enumerate(passages, 1))
    asked = tools.begin("answerer", length=LENGTHS[settings.length], documents=documents)
    read = await tools.ask(*asked, Response)
    return Answer(read.response.strip(), tuple(passages))


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("answerer",),
    prompts=PROMPTS,
    gold_action=gold_action,
    calls=lambda settings: {"answerer": Calls(1, settings.documents)},
)
