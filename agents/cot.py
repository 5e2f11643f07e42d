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

from agents.core.labels import (
    labels_of,
    labels_text,
    mentioned_verdict,
    read_verdict,
    require_label,
    verdict_instructions,
)
from agents.core.prompts.few_shot import task_with_options, worked_examples
from agents.core.tools import Answer, Tools
from ratchet.config import Section
from ratchet.records import Question

ROLES = ("thinker",)

THINK = "Think step by step, in short sentences."
LATER = "Give no answer yet; it will be one of these labels:"
EXTRACT = "So which label is the answer? Write it alone on the last line."


class Settings(Section):
    """The number of calls, and whether worked examples come first."""

    extraction: bool = False
    """Think in one call, say the label in a second one."""
    examples: bool = False
    """Two worked examples with the task's labels come first: small models need them (core/prompts/few_shot.py)."""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Think, then give a label."""
    labels, task = labels_of(question), task_with_options(question, settings.examples)
    worked = worked_examples(question) if settings.examples else ()
    thoughts = ""
    if settings.extraction:
        turns = [turn for e in worked for turn in ((e.task, e.reason), (EXTRACT, e.label))]
        dialogue = tools.dialogue("thinker", f"{THINK} {LATER}\n{labels_text(labels)}", turns)
        thoughts = await tools.ask(dialogue, task)
        message = EXTRACT
    else:
        dialogue = tools.dialogue(
            "thinker", f"{THINK} {verdict_instructions(labels)}", [(e.task, e.verdict) for e in worked]
        )
        message = task
    verdict = await tools.read(
        dialogue, message, lambda said: read_verdict(said, labels), lambda said: mentioned_verdict(said, labels)
    )
    reasons = f"{thoughts.strip()}\n{verdict.reasons}".strip()
    return require_label(tools, Answer(verdict.label, explanation=reasons), "thinker")
