"""Zero-shot chain of thought (Kojima et al. 2022, arXiv 2205.11916), as Tool-MAD's baseline: think, then the label.

Budget: 1 model call, 2 with `extraction`; no retrieval.

Deviations. Tool-MAD's baseline is one call, which is the default; Kojima et al. take a second call to draw the answer
out of the thoughts: `extraction: true`. That second call is a turn of the same dialogue, so it reads what the paper's
prompt repeats. With
`examples: true` it is zero-shot no longer. The words of the prompts are ours.

A text that does not end with a label alone on its last line is malformed; the label that it comes to all the same, if
that is clear, is the answer (agents/core/labels.py).
"""

from __future__ import annotations

from agents.core.labels import VERDICT, labels_of, mentioned_verdict, read_verdict, require_label
from agents.core.prompts.few_shot import task_with_options, worked_examples
from agents.core.prompts.template import Prompt
from agents.core.tools import Answer, Tools
from ratchet.config import Section
from ratchet.records import Question

ROLES = ("thinker",)

THINK = "Think step by step, in short sentences."
LATER = "Give no answer yet; it will be one of these labels:"
PROMPTS = {
    "thinker.system": Prompt(f"{THINK} {VERDICT}"),
    "thinker.user": Prompt("{{task}}"),
    "thinker_extraction.system": Prompt(THINK + " " + LATER + "\n{{labels}}", note="`extraction: true`"),
    "extraction.user": Prompt(
        "So which label is the answer? Write it alone on the last line.", note="`extraction: true`"
    ),
}


class Settings(Section):
    """The number of calls, and whether worked examples come first."""

    extraction: bool = False
    """Think in one call, say the label in a second one."""
    examples: bool = False
    """Two worked examples with the task's labels come first: small models need them (core/prompts/few_shot.py)."""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Think, then give a label."""
    labels = labels_of(question)
    message = tools.prompt("thinker.user", task=task_with_options(question, settings.examples))
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
    verdict = await tools.read(
        dialogue, message, lambda said: read_verdict(said, labels), lambda said: mentioned_verdict(said, labels)
    )
    reasons = f"{thoughts.strip()}\n{verdict.reasons}".strip()
    return require_label(tools, Answer(verdict.label, explanation=reasons), "thinker")
