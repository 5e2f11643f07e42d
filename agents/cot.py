"""Zero-shot chain of thought (Kojima et al. 2022, arXiv 2205.11916), as Tool-MAD's baseline: think, then the label.

Budget: 1 model call; no retrieval, 1 with `documents`.

Deviations. Tool-MAD's baseline is one call; Kojima et al. take a second one to draw the answer out of the thoughts,
which is not offered. `documents: N` shows the N best documents for the question first, which neither paper does: what
the model does not know cannot be told otherwise. The words of the prompts are ours.

A text that gives no label in a form of agents/core/label_forms.py is malformed.
"""

from __future__ import annotations

from pydantic import Field

from ratchet.agents.core.labels import VERDICT, ask_verdict, labels_of, require_label
from ratchet.agents.core.prompts import DOCUMENTS, Prompt, documents_text
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section
from ratchet.core.records import Question

PROMPTS = {
    "thinker.system": Prompt(f"Think step by step, in short sentences. {VERDICT}"),
    "thinker.user": Prompt("{{task}}"),
    "thinker_documents.user": Prompt(DOCUMENTS + "\n\n{{task}}", note="`documents` above 0"),
}


class Settings(Section):
    """The documents that are shown."""

    documents: int = Field(0, ge=0)
    """Retrieve so many documents for the question, and show them above it. With worked examples that have documents
    too (`roles.thinker.examples`), a model learns what they are for."""


def gold_action(question: Question, settings: Settings) -> tuple[str, str]:
    """The label alone on the last line."""
    return "thinker", question.gold_answer


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Think, then give a label."""
    labels = labels_of(question)
    passages = await tools.search("thinker", question.text, settings.documents) if settings.documents else []
    dialogue, message = tools.begin("thinker")
    if settings.documents:
        message = tools.prompt("thinker_documents.user", documents=documents_text(passages))
    verdict = await ask_verdict(tools, dialogue, message, labels)
    return require_label(tools, Answer(verdict.label, tuple(passages), explanation=verdict.reasons), "thinker")


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("thinker",),
    prompts=PROMPTS,
    gives_verdict=True,
    gold_action=gold_action,
    calls=lambda settings: {"thinker": Calls(1, settings.documents)},
)
