"""Tasks with a closed set of answers: what a prompt says of them, and how a model's verdict is read.

Labels come from the task (`Question.labels`), so one system verifies claims, answers exams, and judges evidence. The
forms in which a label counts are those of `agents/core/label_forms.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ratchet.agents.core.label_forms import find_label
from ratchet.agents.core.lookahead import first_sentence
from ratchet.agents.core.output import Malformed
from ratchet.agents.core.prompts import Prompt, unanimous
from ratchet.agents.core.task import Answer, OutOfBudget, Unparsed
from ratchet.agents.core.tools import Tools
from ratchet.core.errors import UserError
from ratchet.core.records import Label, Question
from ratchet.inference.chat import Dialogue

VERDICT = "End with one of these labels, alone on the last line:\n{{labels}}"
"""In a prompt: how a text that gives a verdict has to end, which `read_verdict` reads."""
CONSTRAINED = {
    "label.user": Prompt(
        '{{task}}\n\nWhich of these labels is it? Answer with one JSON object that has it under "label".\n{{labels}}',
        note="`labels: constrain`, after an answer without a label",
    )
}
"""The prompt of every system with `system.labels: constrain`."""


@dataclass(frozen=True)
class Verdict:
    """What a model said and the label that it came to."""

    text: str
    label: str
    """"" where none can be told."""
    reasons: str
    """What it said besides the label."""


def labels_of(question: Question) -> tuple[Label, ...]:
    """The question's labels. Raises UserError where it has none."""
    if not question.labels:
        raise UserError(
            f"question {question.id!r} has no labels, and this system gives a verdict: use a benchmark that has them, "
            "or give your questions a `labels` field: a list of {name, meaning, stance}"
        )
    return question.labels


def names(labels: Sequence[Label]) -> str:
    """The labels' names in one line."""
    return " / ".join(label.name for label in labels)


def read_verdict(text: str, labels: Sequence[Label]) -> Verdict:
    """The label that a text gives in a form of `label_forms`, whichever: the text is then well-formed, and training may
    use it. Its reasons are what stands above a last line that is the form, or all of the text. Raises Malformed."""
    label = find_label(text, labels)
    if not label:
        raise Malformed(f"the last line is not one of the labels {names(labels)}")
    above, _, last = text.rstrip("\n\t `*_-#").rpartition("\n")
    is_all = find_label(last, labels) == label and first_sentence(last) == len(last)
    return Verdict(text, label, (above if is_all else text).strip())


async def ask_verdict(
    tools: Tools,
    dialogue: Dialogue,
    message: str,
    labels: Sequence[Label],
    read: Callable[[str, Sequence[Label]], Verdict] = read_verdict,
) -> Verdict:
    """What is said to the message. Where it gives no label it is malformed, and its label is "": debates go on with the
    text, and others end in `require_label`."""
    return await tools.read(
        dialogue, message, lambda said: read(said, labels), lambda said: Verdict(said, "", said.strip())
    )


def unanimous_verdict(verdicts: Mapping[str, Verdict]) -> Answer:
    """What speakers come to without a judge: the label that all of them give, with their reasons, or no label."""
    candidates = {speaker: verdict.label for speaker, verdict in verdicts.items()}
    label = unanimous(candidates.values())
    reasons = [verdict.reasons for verdict in verdicts.values() if label and verdict.reasons]
    return Answer(label, explanation="\n\n".join(reasons), candidates=candidates)


def require_label(tools: Tools, answer: Answer, role: str) -> Answer:
    """The answer; where it comes to no label it is unparsed, with all that was said on the way.

    The label is then the one that the system had in hand, with the reasons for it, if there is one.
    """
    if answer.text:
        return answer
    if tools.so_far.text:
        answer = replace(tools.so_far, turns=answer.turns, stopped=answer.stopped)
    return replace(answer, status="unparsed", error=f"{role}: its words come to none of the labels")


async def with_constrained_label(question: Question, tools: Tools, solve: Awaitable[Answer]) -> Answer:
    """The answer of `solve`; where it did not finish with one, the label that constrained decoding gives
    (`system.labels: constrain`). Raises what `solve` does where no dialogue was opened, or its context is full."""
    problem: Exception | None = None
    try:
        answer = await solve
    except (Unparsed, OutOfBudget) as error:
        problem, answer = error, replace(tools.so_far, status="unparsed")
    if answer.text and answer.status == "finished":
        return answer
    label = await tools.choose(tools.prompt("label.user"), "label", [label.name for label in question.labels])
    if label is None and problem is not None:
        raise problem
    return answer if label is None else replace(answer, text=label, status="finished", error="")
