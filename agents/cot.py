"""Zero-shot chain of thought (Kojima et al. 2022, arXiv 2205.11916), as Tool-MAD's baseline: think, then the label.

Budget: 1 model call, 2 with `extraction`; no retrieval, 1 with `documents`.

Deviations. Tool-MAD's baseline is one call, which is the default; Kojima et al. take a second call to draw the answer
out of the thoughts: `extraction: true`. That second call is a turn of the same dialogue, so it reads what the paper's
prompt repeats. `documents: N` shows the N best documents for the question first, which neither paper does: what the
model does not know cannot be told otherwise. With `examples: true` it is zero-shot no longer. The words of the prompts
are ours.

A text that gives no label in a form of agents/core/label_forms.py is malformed.
"""

from __future__ import annotations

from pydantic import Field

from agents.core.few_shot import ExampleSettings, task_with_options, worked_examples
from agents.core.labels import VERDICT, ask_verdict, labels_of, require_label
from agents.core.prompts.documents import DOCUMENTS, documents_text
from agents.core.prompts.template import Prompt
from agents.core.spec import SystemSpec
from agents.core.tools import Answer, Tools
from ratchet.records import Question

THINK = "Think step by step, in short sentences."
LATER = "Give no answer yet; it will be one of these labels:"
PROMPTS = {
    "thinker.system": Prompt(f"{THINK} {VERDICT}"),
    "thinker.user": Prompt("{{task}}"),
    "thinker_documents.user": Prompt(DOCUMENTS + "\n\n{{task}}", note="`documents` above 0"),
    "thinker_extraction.system": Prompt(THINK + " " + LATER + "\n{{labels}}", note="`extraction: true`"),
    "extraction.user": Prompt(
        "So which label is the answer? Write it alone on the last line.", note="`extraction: true`"
    ),
}


class Settings(ExampleSettings):
    """The number of calls, the documents that are shown, and whether worked examples come first."""

    extraction: bool = False
    """Think in one call, say the label in a second one."""
    documents: int = Field(0, ge=0)
    """Retrieve so many documents for the question, and show them above it. With worked examples that have documents
    too (`roles.thinker.examples`), a model learns what they are for."""


def gold_action(question: Question, settings: Settings) -> tuple[str, str]:
    """The label alone on the last line; the thoughts of `extraction` stay as they were sampled."""
    return "thinker", question.gold_answer


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Think, then give a label."""
    labels = labels_of(question)
    task = task_with_options(question, settings.examples)
    passages = await tools.search("thinker", question.text, settings.documents) if settings.documents else []
    message = (
        tools.prompt("thinker_documents.user", documents=documents_text(passages), task=task)
        if settings.documents
        else tools.prompt("thinker.user", task=task)
    )
    worked = [
        (tools.prompt("thinker.user", task=example.task, question=example.asked), example)
        for example in (worked_examples(question) if settings.examples else ())
    ]
    thoughts = ""
    if settings.extraction:
        extract = tools.prompt("extraction.user")
        turns = [turn for asked, e in worked for turn in ((asked, e.reason), (extract, e.label))]
        dialogue = tools.dialogue("thinker", tools.prompt("thinker_extraction.system"), turns)
        thoughts = await tools.ask(dialogue, message)
        message = extract
    else:
        turns = [(asked, e.verdict) for asked, e in worked]
        dialogue = tools.dialogue("thinker", tools.prompt("thinker.system"), turns)
    verdict = await ask_verdict(tools, dialogue, message, labels)
    reasons = f"{thoughts.strip()}\n{verdict.reasons}".strip()
    return require_label(tools, Answer(verdict.label, tuple(passages), explanation=reasons), "thinker")


SYSTEM = SystemSpec(Settings, solve, roles=("thinker",), prompts=PROMPTS, gives_verdict=True, gold_action=gold_action)
