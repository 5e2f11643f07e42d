"""Tasks with a closed set of answers: what a prompt says of them, and how a model's verdict is read.

Labels come from the task (`Question.labels`), so one system verifies claims, answers exams, and judges evidence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agents.acting import Acting, Answer
from agents.output import Malformed
from agents.reading import unanimous
from ratchet.errors import UserError
from ratchet.records import Label, Question, Stance

CUE = (
    r"(?i:\b(?:answer|verdict|label|conclusion|choice|option|choose|pick|select)\b(?:[^.:]{0,40}?\b(?:is|would be))?)"
    r"[\s:*_`\"'(\[]*"
)
"""What a text says before it states its verdict."""
NEGATED = r"(?<!\b[Nn]ot )(?<!\bNOT )(?<!n't )"
"""What must not stand before a label that is named in passing."""
NO_CHOICE = r"(?!\s*(?:/|\||or\b))"
BEFORE_MARK = r"(?=\W*[,.:;)\]])"


@dataclass(frozen=True)
class Verdict:
    """What a model said and the label that it came to."""

    said: str
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


def task_text(question: Question) -> str:
    """The text with what it is: "Claim: ..." or "Question: ..."."""
    return f"{question.form.capitalize()}: {question.text}"


def labels_text(labels: Sequence[Label]) -> str:
    """One label a line, with what it means."""
    return "\n".join(f"{label.name}: {label.meaning}" if label.meaning else label.name for label in labels)


def ending(labels: Sequence[Label]) -> str:
    """How a text that gives a verdict has to end: what `read_verdict` reads."""
    return f"End with one of these labels, alone on the last line:\n{labels_text(labels)}"


def names(labels: Sequence[Label]) -> str:
    """The labels' names in one line."""
    return " / ".join(label.name for label in labels)


def read_label(text: str, labels: Sequence[Label]) -> str:
    """The label that stands alone on the last line, in the task's own spelling. Raises Malformed.

    Case, punctuation and markup around it do not count, and what the prompt says of it ("B: the text of choice B")
    may follow it. Right below another label it is the end of a list of labels, and no verdict.
    """
    return read_verdict(text, labels).label


def read_verdict(text: str, labels: Sequence[Label]) -> Verdict:
    """Reasons, then the label alone on the last line. Raises Malformed."""
    lines = text.splitlines()
    while lines and not _key(lines[-1]) and not _alone(lines[-1], labels):
        lines.pop()
    label = _alone(lines[-1], labels) if lines else ""
    if not label:
        raise Malformed(f"the last line is not one of the labels {names(labels)}")
    if _ends_list(lines, labels):
        raise Malformed(f"the last lines are a list of labels; end with one of them: {names(labels)}")
    return Verdict(text, label, "\n".join(lines[:-1]).strip())


def mentioned_label(text: str, labels: Sequence[Label]) -> str:
    """The label that a text out of form comes to, "" where that is not clear: the lenient reading.

    The last line that names a label decides. The label stands alone on it, or behind words like "the answer is", or at
    its beginning and before a mark, or it is the only one there. A label within a longer one ("Supported" in "Not
    Supported") is not named, nor is one behind "not"; those of fewer than four letters ("A", "no") are never named in
    passing.
    """
    lines = unicodedata.normalize("NFKC", text).splitlines()
    while lines:
        if _ends_list(lines, labels):
            return ""
        line = lines.pop()
        alone = _alone(line, labels)
        stated = _named(line, labels, CUE, NO_CHOICE) or _named(line, labels, r"^\W*", BEFORE_MARK)
        passing = _named(line, [label for label in labels if len(label.name) > 3], NEGATED)
        if alone or stated:
            return alone or stated[-1]
        if passing:
            return passing[0] if len(set(passing)) == 1 else ""
    return ""


def mentioned_verdict(text: str, labels: Sequence[Label]) -> Verdict:
    """The lenient reading; all of the text counts as reasons."""
    return Verdict(text, mentioned_label(text, labels), text.strip())


def _key(text: str) -> str:
    """Letters and digits in small, whatever stands between them one blank."""
    return re.sub(r"[\W_]+", " ", unicodedata.normalize("NFKC", text).casefold()).strip()


def _alone(line: str, labels: Sequence[Label]) -> str:
    """The label that makes up the line; "" where none does, or where two differ by marks alone."""
    exact = [label.name for label in labels if label.name == line.strip()]
    key = _key(line)
    alike = [label.name for label in labels if key and key in (_key(label.name), _key(f"{label.name} {label.meaning}"))]
    found = exact or alike
    return found[0] if len(found) == 1 else ""


def _ends_list(lines: Sequence[str], labels: Sequence[Label]) -> bool:
    """The last line is a label, and so is the one above it, and another one."""
    found = {_alone(line, labels) for line in lines[-2:]}
    return len(found) == 2 and "" not in found


def _named(line: str, labels: Sequence[Label], before: str, after: str = "") -> list[str]:
    """The labels that a line names between these patterns, in order. One of one letter counts in its own case only."""
    ordered = sorted(labels, key=lambda label: -len(label.name))
    spelled = [r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", label.name))) for label in ordered]
    either = "|".join(f"({words})" if len(words) == 1 else f"((?i:{words}))" for words in spelled)
    found = re.finditer(rf"{before}(?<!\w)(?:{either})(?!\w){after}", line)
    return [ordered[match.lastindex - 1].name for match in found if match.lastindex]


def label_with(labels: Sequence[Label], stance: Stance) -> str | None:
    """The first label of that stance; None where the task has none."""
    return next((label.name for label in labels if label.stance == stance), None)


def common_answer(verdicts: Mapping[str, Verdict]) -> Answer:
    """What speakers come to without a judge: the label that all of them give, with their reasons, or no label."""
    candidates = {speaker: verdict.label for speaker, verdict in verdicts.items()}
    label = unanimous(candidates.values())
    reasons = [verdict.reasons for verdict in verdicts.values() if label and verdict.reasons]
    return Answer(label, explanation="\n\n".join(reasons), candidates=candidates)


def concluded(tools: Acting, answer: Answer, role: str) -> Answer:
    """The answer; where it comes to no label it is unparsed, with all that was said on the way.

    The label is then the one that the system had in hand, with the reasons for it, if there is one.
    """
    if answer.text:
        return answer
    if tools.so_far.text:
        answer = replace(tools.so_far, turns=answer.turns, stopped=answer.stopped)
    return replace(answer, status="unparsed", error=f"{role}: its words come to none of the labels")
