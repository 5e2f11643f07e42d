"""Naive-Gen, the baseline without retrieval of AwE and FlashRAG (docs/papers/awe.md): the model answers.

Budget: one model call, no retrieval. The answer is what stands behind "The answer is:", else the whole output. It asks
for a short answer, as `no_retrieval` (the baseline of mRAG) does not; the words of the prompt are ours.
"""

from __future__ import annotations

from agents.core.prompts.documents import KNOW, QUESTION, final_answer
from agents.core.prompts.template import Prompt
from agents.core.tools import Answer, Tools
from ratchet.config import Section
from ratchet.records import Question

ROLES = ("answerer",)
PROMPTS = {"answerer.system": Prompt(KNOW), "answerer.user": Prompt(QUESTION)}


class Settings(Section):
    """Nothing can be set."""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Answer from what the model knows."""
    dialogue = tools.dialogue("answerer", tools.prompt("answerer.system"))
    return Answer(final_answer(await tools.ask(dialogue, tools.prompt("answerer.user"))))
