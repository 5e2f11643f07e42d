"""The baselines that ask a model once: from what it knows, or from documents that were retrieved for the question.

Naive-Gen and Naive-RAG (`naive_gen`, `naive_rag`) are AwE's and FlashRAG's (docs/papers/awe.md, section 4.2). No
retrieval and vanilla RAG (`no_retrieval`, `vanilla_rag`) are mRAG's (Salemi et al. 2025, arXiv 2506.10844, appendix B).
Direct prompting and zero-shot chain of thought (`direct`, `cot`) are Tool-MAD's rows of a model alone (Jeong et al.
2026, arXiv 2601.04742, table III). The words of all prompts are ours.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ratchet.agents.core.labels import VERDICT, Verdict, ask_verdict, labels_of, read_verdict, require_label
from ratchet.agents.core.output import AnyText, JsonObject, Malformed, json_text
from ratchet.agents.core.prompts import (
    DATA,
    DOCUMENTS,
    DOCUMENTS_AND_QUESTION,
    KNOW_IN_FORM,
    QUESTION,
    READ_IN_FORM,
    FormSettings,
    Prompt,
    ReadingSettings,
    documents_text,
    final_answer,
    in_form,
    one_line,
    passage_text,
)
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.agents.mrag.paper import ANSWER_EXAMPLE, BRIEF_PROMPTS, document_line
from ratchet.agents.mrag.schemas import BriefAnswer
from ratchet.agents.mrag.state import LENGTHS, Length
from ratchet.core.config import Section
from ratchet.core.records import Question


def gold_answer(question: Question, settings: Section) -> tuple[str, str]:
    """The answer alone."""
    return "answerer", question.gold_answer


# Naive-Gen and Naive-RAG: the answer is what stands behind "The answer is:", else the whole output. They ask for a
# short answer in free text, as mRAG's baselines do not.


def naive_gold_answer(question: Question, settings: FormSettings) -> tuple[str, str]:
    """The answer in the form that the prompt asks for."""
    return "answerer", in_form(question.gold_answer, settings.answer_form)


async def naive_gen(question: Question, tools: Tools, settings: FormSettings) -> Answer:
    """Naive-Gen of AwE and FlashRAG: the model answers from what it knows. Budget: one model call."""
    said = await tools.ask(*tools.begin("answerer", answer_form=settings.form))
    return Answer(final_answer(said))


async def naive_rag(question: Question, tools: Tools, settings: ReadingSettings) -> Answer:
    """Naive-RAG of AwE and FlashRAG: retrieve for the question, then answer from the documents. Budget: one model call,
    one retrieval (top 3)."""
    passages = await tools.search("answerer", question.text, settings.documents)
    said = await tools.ask(*tools.begin("answerer", answer_form=settings.form, documents=settings.show(passages)))
    return Answer(final_answer(said), tuple(passages))


# mRAG's baselines. The paper plays both with the answerer's model (Falcon3-10B-Instruct), nucleus sampling at
# temperature 0.1. `style: brief` is for small models, and for comparison with systems that ask for a short answer.

READ_FOR_RESPONSE = """\
You are an assistant who answers questions with the help of documents. Answer to the point, and state nothing that the \
documents do not support.

You are given
- "question": the question that is to be answered
- "supporting documents": documents that help to answer it
and write one JSON object with
- "response": the answer to the question, to the point and supported by the documents

Write that one JSON object and nothing else."""
NO_RETRIEVAL_PROMPTS = {
    "answerer.system": Prompt(
        "You are an assistant who answers questions. Answer the one you are given.\n\n{{length?}}",
        ("length",),
        "figure 13",
    ),
    "answerer.user": Prompt(QUESTION, note="figure 13"),
    "brief_answerer.system": Prompt("Answer the question briefly.\n\n{{length?}}", ("length",), "`style: brief`"),
}
VANILLA_RAG_PROMPTS = {
    "answerer.system": Prompt(READ_FOR_RESPONSE + "\n\n{{length?}}", ("length",), "figure 14"),
    "answerer.user": Prompt(QUESTION + f"\nSupporting documents {DATA}:\n" + "{{documents}}", note="figure 14"),
    "brief_answerer.system": BRIEF_PROMPTS["brief_answerer.system"],
    "brief_answerer.user": Prompt("{{documents?}}\n" + QUESTION, note="`style: brief`"),
}


class NoRetrievalSettings(Section):
    """The wording of the prompt."""

    style: Literal["paper", "brief"] = "paper"
    """`brief`: short prompts for small models."""
    length: Length = "any"
    """Length of the answer that is asked for, as in `mrag`."""


class VanillaRagSettings(NoRetrievalSettings):
    """The wording of the prompt, and the documents that are read."""

    documents: int = Field(2, gt=0)
    """Number of documents that a query finds."""


class Response(JsonObject):
    """The answer as the paper's prompt asks for it."""

    response: AnyText


async def no_retrieval(question: Question, tools: Tools, settings: NoRetrievalSettings) -> Answer:
    """mRAG's baseline without retrieval: the model answers from what it knows, in plain text (figure 13). Budget: one
    model call."""
    slot = "answerer.system" if settings.style == "paper" else "brief_answerer.system"
    dialogue = tools.dialogue("answerer", tools.prompt(slot, length=LENGTHS[settings.length]))
    return Answer((await tools.ask(dialogue, tools.prompt("answerer.user"))).strip())


def vanilla_gold_answer(question: Question, settings: VanillaRagSettings) -> tuple[str, str]:
    """The answer in the JSON that the prompt asks for."""
    answer = question.gold_answer
    return "answerer", json_text(BriefAnswer(answer=answer) if settings.style == "brief" else Response(response=answer))


async def vanilla_rag(question: Question, tools: Tools, settings: VanillaRagSettings) -> Answer:
    """mRAG's retrieve-then-read baseline: two documents for the question, then one model call that reads them (figure
    14). Budget: one model call, one retrieval. The brief style is what mRAG's answerer is given in its own, example
    included."""
    passages = await tools.search("answerer", question.text, settings.documents)
    length = LENGTHS[settings.length]
    if settings.style == "brief":
        system = tools.prompt("brief_answerer.system", length=length)
        dialogue = tools.dialogue("answerer", system, (ANSWER_EXAMPLE,))
        documents = "\n".join(map(document_line, reversed(passages)))
        message = tools.prompt("brief_answerer.user", documents=documents)
        return Answer((await tools.ask(dialogue, message, BriefAnswer)).answer.strip(), tuple(passages))
    documents = "\n".join(f"Document {i}: {one_line(passage_text(p))}" for i, p in enumerate(passages, 1))
    said = await tools.ask(*tools.begin("answerer", length=length, documents=documents), Response)
    return Answer(said.response.strip(), tuple(passages))


# Tool-MAD's rows of a model alone, for tasks with labels. A label in a form that `read_verdict` reads is the answer.


async def direct(question: Question, tools: Tools, settings: Section) -> Answer:
    """Direct prompting: the model is asked for the label, and for nothing else. Budget: one model call. The paper does
    not show this prompt. A text that is not a label alone is malformed."""
    labels = labels_of(question)

    def read(text: str) -> Verdict:
        verdict = read_verdict(text, labels)
        if verdict.reasons:
            raise Malformed("Write the label alone.", verdict)
        return verdict

    verdict = await tools.read(*tools.begin("answerer"), read)
    return require_label(tools, Answer(verdict.label), "answerer")


class CotSettings(Section):
    """The documents that are shown."""

    documents: int = Field(0, ge=0)
    """Number of documents to retrieve and show above the question. Worked examples with documents
    (`roles.thinker.examples`) teach their use."""


async def cot(question: Question, tools: Tools, settings: CotSettings) -> Answer:
    """Zero-shot chain of thought (Kojima et al. 2022, arXiv 2205.11916): think, then the label. Budget: one model call;
    one retrieval with `documents`.

    Deviations: as in Tool-MAD, one call; Kojima et al. take a second one to draw the answer out of the thoughts.
    `documents: N` shows the N best documents for the question first, which neither paper does: what the model does not
    know cannot be told otherwise.
    """
    labels = labels_of(question)
    passages = await tools.search("thinker", question.text, settings.documents) if settings.documents else []
    dialogue, message = tools.begin("thinker")
    if settings.documents:
        message = tools.prompt("thinker_documents.user", documents=documents_text(passages))
    verdict = await ask_verdict(tools, dialogue, message, labels)
    return require_label(tools, Answer(verdict.label, tuple(passages), explanation=verdict.reasons), "thinker")


SYSTEMS: dict[str, SystemSpec[Any]] = {
    "naive_gen": SystemSpec(
        FormSettings,
        naive_gen,
        roles=("answerer",),
        prompts={"answerer.system": KNOW_IN_FORM, "answerer.user": Prompt(QUESTION)},
        gold_action=naive_gold_answer,
    ),
    "naive_rag": SystemSpec(
        ReadingSettings,
        naive_rag,
        roles=("answerer",),
        prompts={"answerer.system": READ_IN_FORM, "answerer.user": Prompt(DOCUMENTS_AND_QUESTION)},
        gold_action=naive_gold_answer,
        calls=lambda settings: {"answerer": Calls(1, settings.documents)},
    ),
    "no_retrieval": SystemSpec(
        NoRetrievalSettings, no_retrieval, roles=("answerer",), prompts=NO_RETRIEVAL_PROMPTS, gold_action=gold_answer
    ),
    "vanilla_rag": SystemSpec(
        VanillaRagSettings,
        vanilla_rag,
        roles=("answerer",),
        prompts=VANILLA_RAG_PROMPTS,
        gold_action=vanilla_gold_answer,
        calls=lambda settings: {"answerer": Calls(1, settings.documents)},
    ),
    "direct": SystemSpec(
        Section,
        direct,
        roles=("answerer",),
        prompts={
            "answerer.system": Prompt("Which of these labels is right? Write the label alone.\n{{labels}}"),
            "answerer.user": Prompt("{{task}}"),
        },
        gives_verdict=True,
        gold_action=gold_answer,
    ),
    "cot": SystemSpec(
        CotSettings,
        cot,
        roles=("thinker",),
        prompts={
            "thinker.system": Prompt(f"Think step by step, in short sentences. {VERDICT}"),
            "thinker.user": Prompt("{{task}}"),
            "thinker_documents.user": Prompt(DOCUMENTS + "\n\n{{task}}", note="`documents` above 0"),
        },
        gives_verdict=True,
        gold_action=lambda question, settings: ("thinker", question.gold_answer),
        calls=lambda settings: {"thinker": Calls(1, settings.documents)},
    ),
}
