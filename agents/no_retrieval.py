"""The baseline of mRAG without retrieval: the model answers from what it knows.

Source: Salemi et al. 2025, arXiv 2506.10844, appendix B, figure 13.

One model call, no search. The paper plays it with the answerer's model (Falcon3-10B-Instruct), nucleus sampling at
temperature 0.1. Plain text in and out, as in the paper. `style: brief` asks for a short answer, for comparison
with systems that do. The words of the prompts are ours.
"""

from __future__ import annotations

from typing import Literal

from ratchet.agents.core.prompts import QUESTION, Prompt
from ratchet.agents.core.system import SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.agents.mrag.state import LENGTHS, Length
from ratchet.core.config import Section
from ratchet.core.records import Question

PROMPTS = {
    "answerer.system": Prompt(
        "You are an assistant who answers questions. Answer the one you are given.\n\n{{length?}}",
        ("length",),
        "figure 13",
    ),
    "answerer.user": Prompt(QUESTION, note="figure 13"),
    "brief_answerer.system": Prompt("Answer the question briefly.\n\n{{length?}}", ("length",), "`style: brief`"),
}


class Settings(Section):
    """The wording of the prompt."""

    style: Literal["paper", "brief"] = "paper"
    length: Length = "any"
    """The length of the answer that is asked for, as in `mrag`."""


def gold_action(question: Question, settings: Settings) -> tuple[str, str]:
    """The answer."""
    return "answerer", question.gold_answer


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Answer from what the model knows."""
    slot = "answerer.system" if settings.style == "paper" else "brief_answerer.system"
    dialogue = tools.dialogue("answerer", tools.prompt(slot, length=LENGTHS[settings.length]))
    text = await tools.ask(dialogue, tools.prompt("answerer.user"))
    return Answer(text.strip())


SYSTEM = SystemSpec(Settings, solve, roles=("answerer",), prompts=PROMPTS, gold_action=gold_action)
