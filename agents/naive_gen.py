"""Naive-Gen, the baseline without retrieval of AwE and FlashRAG (docs/papers/awe.md): the model answers.

Budget: one model call, no retrieval. The answer is what stands behind "The answer is:", else the whole output. It asks
for a short answer, as `no_retrieval` (the baseline of mRAG) does not; the words of the prompt are ours.
"""

from __future__ import annotations

from ratchet.agents.core.prompts import KNOW_IN_FORM, QUESTION, FormSettings, Prompt, final_answer, in_form
from ratchet.agents.core.system import SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.records import Question

PROMPTS = {"answerer.system": KNOW_IN_FORM, "answerer.user": Prompt(QUESTION)}


def gold_action(question: Question, settings: FormSettings) -> tuple[str, str]:
    """The answer in the form that the prompt asks for."""
    return "answerer", in_form(question.gold_answer, settings.answer_form)


async def solve(question: Question, tools: Tools, settings: FormSettings) -> Answer:
    """Answer from what the model knows."""
    said = await tools.ask(*tools.begin("answerer", answer_form=settings.form))
    return Answer(final_answer(said))


SYSTEM = SystemSpec(FormSettings, solve, roles=("answerer",), prompts=PROMPTS, gold_action=gold_action)
