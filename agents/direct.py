"""Direct prompting of a task with labels: the model is asked for the label, and for nothing else.

Tool-MAD's rows of a model alone (Jeong et al. 2026, arXiv 2601.04742, table III); the paper does not show that prompt.
It differs from zero-shot CoT (agents/cot.py) only in that no thoughts are asked for.

Budget: 1 model call; no retrieval.

A text that is not a label alone is malformed; the label that it gives all the same in a form of
agents/core/label_forms.py is the answer. The words of the prompt are ours.
"""

from __future__ import annotations

from ratchet.agents.core.label_forms import find_label
from ratchet.agents.core.labels import labels_of, read_verdict, require_label
from ratchet.agents.core.output import Malformed
from ratchet.agents.core.prompts import Prompt
from ratchet.agents.core.system import SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section
from ratchet.core.records import Question

PROMPTS = {
    "answerer.system": Prompt("Which of these labels is right? Write the label alone.\n{{labels}}"),
    "answerer.user": Prompt("{{task}}"),
}


def gold_action(question: Question, settings: Section) -> tuple[str, str]:
    """The label alone."""
    return "answerer", question.gold_answer


async def solve(question: Question, tools: Tools, settings: Section) -> Answer:
    """Give a label."""
    labels = labels_of(question)

    def read(text: str) -> str:
        verdict = read_verdict(text, labels)
        if verdict.reasons:
            raise Malformed("Write the label alone.")
        return verdict.label

    label = await tools.read(*tools.begin("answerer"), read, lambda text: find_label(text, labels))
    return require_label(tools, Answer(label), "answerer")


SYSTEM = SystemSpec(Section, solve, roles=("answerer",), prompts=PROMPTS, gives_verdict=True, gold_action=gold_action)
