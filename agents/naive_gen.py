"""Naive-Gen, the baseline without retrieval of AwE and FlashRAG (docs/papers/awe.md): the model answers.

Budget: one model call, no retrieval. The answer is what stands behind "The answer is:", else the whole output. It asks
for a short answer, as `no_retrieval` (the baseline of mRAG) does not; the words of the prompt are ours.
"""

from __future__ import annotations

from agents.core.prompts.documents import FORMS, KNOW_IN_FORM, QUESTION, AnswerForm, final_answer, in_form
from agents.core.prompts.template import Prompt
from agents.core.spec import SystemSpec
from agents.core.tools import Answer, Tools
from ratchet.config import Section
from ratchet.records import Question

PROMPTS = {"answerer.system": KNOW_IN_FORM, "answerer.user": Prompt(QUESTION)}


class Settings(Section):
    """The form of the answer."""

    answer_form: AnswerForm = "alone"
    """What the prompt asks for: the answer alone, or (`marked`) the answer behind "The answer is:", as the evaluation
    script of DRAG reads it, which AwE adopts. Either is read from what the model writes."""


def gold_action(question: Question, settings: Settings) -> tuple[str, str]:
    """The answer in the form that the prompt asks for."""
    return "answerer", in_form(question.gold_answer, settings.answer_form)


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Answer from what the model knows."""
    dialogue = tools.dialogue("answerer", tools.prompt("answerer.system", answer_form=FORMS[settings.answer_form]))
    return Answer(final_answer(await tools.ask(dialogue, tools.prompt("answerer.user"))))


SYSTEM = SystemSpec(Settings, solve, roles=("answerer",), prompts=PROMPTS, gold_action=gold_action)
