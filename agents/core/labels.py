"""Tasks with a closed set of answers: what a prompt says of them, and how a model's verdict is read.

Labels come from the task (`Question.labels`), so one system verifies claims, answers exams, and judges evidence. A
label is read from forms and never from prose: it counts where it is all of its sentence or line, or all that stands
behind a cue; and then only
- alone on the first or the last line, or in bold on a line of its own or as the last sentence;
- behind a cue that begins a sentence: "Verdict: ...", "So the final answer is ...", a heading, also where a reason
  follows it; behind "the claim is" only where it is marked: in bold, in quotes, or in capitals as the task's own name;
- behind "Therefore,", "So,", "Output:" or "Result:" at the reply's end, where no other such sentence has another label;
- in a box, in a tag like <answer> or in a JSON field that is named like a cue.
There its name counts in every inflection, its synonyms by stance, its meaning, and its name with its meaning: "half
true" is not "true", and "A beta-lactam" is not "A". The last form decides, unless one above it gives another label and
it is neither called final nor alone. Else it is "": a wrong label costs more than asking again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from ratchet.agents.core.lookahead import first_sentence, sentences
from ratchet.agents.core.output import Malformed
from ratchet.agents.core.prompts import Prompt, unanimous
from ratchet.agents.core.task import Answer, OutOfBudget, Unparsed
from ratchet.agents.core.tools import Tools
from ratchet.core.errors import UserError
from ratchet.core.records import Label, Question, Stance
from ratchet.inference.chat import Dialogue

VERDICT = "End with one of these labels, alone on the last line:\n{{labels}}"
"""The end of a prompt for a verdict, which `read_verdict` reads."""
CONSTRAINED = {
    "label.user": Prompt(
        '{{task}}\n\nWhich of these labels is it? Answer with one JSON object that has it under "label".\n{{labels}}',
        note="`labels: constrain`, after an answer without a label",
    )
}
"""The prompt of every system with `system.labels: constrain`."""


@dataclass(frozen=True)
class Verdict:
    """A model's words and the label that they come to."""

    text: str
    label: str
    """"" where none can be told."""
    reasons: str
    """Its words besides the label."""


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
    """The label that a text gives in one of the forms above, whichever: the text is then well-formed, and training may
    use it. Its reasons are what stands above a last line that is the form, or all of the text. Raises Malformed."""
    label = find_label(text, labels)
    if not label:
        raise Malformed(f"the last line is not one of the labels {names(labels)}", Verdict(text, "", text.strip()))
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
    """Ask for a verdict. A reply without a label is malformed, and its label is "": debates go on with the text, and
    others end in `require_label`."""
    return await tools.read(dialogue, message, lambda said: read(said, labels))


def unanimous_verdict(verdicts: Mapping[str, Verdict]) -> Answer:
    """The answer of speakers without a judge: the label that all of them give, with their reasons, or no label."""
    candidates = {speaker: verdict.label for speaker, verdict in verdicts.items()}
    label = unanimous(candidates.values())
    reasons = [verdict.reasons for verdict in verdicts.values() if label and verdict.reasons]
    return Answer(label, explanation="\n\n".join(reasons), candidates=candidates)


def require_label(tools: Tools, answer: Answer, role: str) -> Answer:
    """The answer, unparsed where it has no label: the label and reasons are then those that the system had in hand."""
    if answer.text:
        return answer
    if tools.so_far.text:
        answer = replace(tools.so_far, stopped=answer.stopped)
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


# The forms in which a label counts

MAX_CHARS = 10_000
"""Characters of a reply's end that are read."""
SYNONYMS: dict[Stance, str] = {
    "true": "support, true, correct, accurate, entail, entailment",
    "false": "refute, false, incorrect, inaccurate, contradict, untrue, disprove",
    "unknown": "unknown, unverifiable, cannot be determined, cannot be verified, NEI, not enough info, "
    "not enough evidence, insufficient info, insufficient evidence, not enough information, insufficient information",
    "mixed": "mixed, mixed evidence, conflicting, conflicting evidence, cherry picking, "
    "conflicting evidence / cherry picking",
}
"""Other names of a label of a stance, where it is the task's only one of that stance."""
pattern = partial(re.compile, flags=re.IGNORECASE | re.MULTILINE)
INFLECTION = pattern(r"(?<=\w{4})(?:ed|es|ing|ions?|s|e)\b")
SO = (
    r"(?:(?:so|thus|therefore|hence|finally|overall|in (?:conclusion|summary)"
    r"|(?:since|because|as|given|based on|considering) [^,;:?]{1,300},),? )?"
)
KIND = r"(?:(?:the|my|our|final|overall|correct|right|best|most|likely|appropriate|proper|short)[ _])*"
NOUN = rf"{KIND}(?:answer|verdict|label|conclusion|choice|option|judge?ment|classification|decision|prediction)"
CUE = pattern(
    rf"\W*(?:{NOUN}: )?{SO}(?:{NOUN}(?: (?:to|for|of) (?:the|this) (?:question|claim))?|(th\w+ (?:claim|statement)))\s*"
    r"(?:is(?! (?:in)?(?:correct|accurate))(?: therefore| thus| label+ed| classified)?(?: as)?\b(?:\s*:)?|[:=]|\Z)\s*"
)
"""The words of a sentence before its label. "The answer is incorrect" gives no label."""
LAST_CUE = pattern(rf"[\s*_#-]*(?:(?:so|thus|therefore|hence)[*_]*[,:]|{KIND}(?:output|result)[*_]*\s*[:=])[\s*_]*")
"""Words that only a reply's last sentence may have before its label: they also begin sentences that are no verdict."""
REASON = pattern(r"\s*(?:[,;()\u2013\u2014]|\s-\s|\b(?=because\b|since\b|as\b|due\b))\s*")
NO_REASON = pattern(r"\b(?:or|but|if|unless|al?though|however|maybe|perhaps|possibly|mostly|partly)\b|\?")
MARKUP = pattern(r"[*`\"\u201c\u201d#$]|__")
BOLD = pattern(r"\W*(?:\*\*|__)")
MARKED = pattern(r"[*_`\"\u201d][\W_]?\Z")
OPEN = pattern(r"\b(?:not|or|nor|and|that|if|whether|unless)[\s,]*\Z")
TAKES_BACK = pattern(rf"\W*(?:but|however|though|no|or|wait|correction|actually|just|I (?:can|do|am)|{NOUN} is not)\b")
"""OPEN ends the sentence before a label that is not meant, and TAKES_BACK begins the one behind it."""
NEXT_TASK = pattern(r"\W*(?:claim|question)\W*:")
REWRITES = (
    (pattern(r"^[ \t]*(?:>[^\n]*|\d+[.)][ \t]+)|(?<=\w )\[\d+\]"), ""),
    (pattern(r"([.!?])(\*\*|__)"), r"\2\1"),
    (pattern(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}"), r"\1"),
    (pattern(r"\\boxed\{([^{}]*)\}"), r"\nFinal answer: \1\n"),
    (pattern(rf"[\"']{NOUN}[\"']\s*:\s*(?:\"([^\"\n]*)\"|'([^'\n]*)'|(\w+))"), r"\nFinal answer: \1\2\3\n"),
    (pattern(rf"<{NOUN}>([^<>]*)</"), r"\nFinal answer: \1\n"),
)
"""Quoted lines, numbers and citations away, full stops out of bold; a box, field or tag as a cue on its own line."""


def find_label(text: str, labels: Sequence[Label]) -> str:
    """The label that a text gives in one of the forms at the head of this file, in the task's own spelling, or ""."""
    table = _spellings(tuple(labels))
    text = unicodedata.normalize("NFKC", text if len(text) < MAX_CHARS else f"x{text[-MAX_CHARS:]}")
    for pattern, form in REWRITES:
        text = pattern.sub(form, text)
    lines = [line.strip() for line in text.splitlines() if _words(line)]
    end = next((n for n, line in enumerate(lines) if n and NEXT_TASK.match(line)), len(lines))
    for part in (lines[:end], lines):  # a model may go on with another task
        forms = [*_forms(part, table)]
        label, place, is_final = forms[-1] if forms else ("", 0, False)
        if label and all(form[0] == label for form in forms if not is_final or form[1] >= place - 1):
            return label
    return ""


def _forms(lines: Sequence[str], table: Mapping[str, str]) -> Iterator[tuple[str, int, bool]]:
    """Every form's label ("" in a list), the number of its line, and True where it is called final or is alone."""
    pieces = [("", -1), *((sentence, n) for n, line in enumerate(lines) for sentence in sentences(line)), ("", -1)]
    loose: list[str] = []
    for (above, _), (sentence, place), (behind, _) in zip(pieces, pieces[1:], pieces[2:], strict=False):
        plain, before = MARKUP.sub("", sentence), MARKUP.sub("", above)
        if (last_cue := LAST_CUE.match(sentence)) and (label := _whole(sentence[last_cue.end() :], table)):
            loose.append("" if before.endswith((":", ",")) or OPEN.search(before) else label)
            if not behind and len({*loose}) == 1:
                yield loose[0], place, False
            continue
        cue, is_bold, is_list = CUE.match(plain), bool(BOLD.match(sentence)), False
        said = plain[cue.end() :] if cue else sentence
        label = _whole(said, table) or (_before_reason(said, table) if cue else "")
        if cue:
            is_form = not cue[1] or bool(MARKED.search(sentence)) or (said.isupper() and label.isupper())
        else:
            is_alone = (sentence == lines[place]) + (not behind or not place) + is_bold > 1 and not before.endswith(":")
            is_form = is_alone or bool(above and (CUE.fullmatch(before) or (not behind and LAST_CUE.fullmatch(above))))
            head = _whole(re.split("[.:)]", before, maxsplit=1)[0], table)
            is_list = head not in ("", label) and is_bold == bool(BOLD.match(above))
        if label and is_form and not OPEN.search(before) and not TAKES_BACK.match(behind):
            yield "" if is_list else label, place, not cue or "final" in cue[0].lower()


def _before_reason(said: str, table: Mapping[str, str]) -> str:
    """The label before a reason that names none; a letter alone, which may begin a list, only before "because"."""
    head, *reason = [part for part in REASON.split(said) if part] or [""]
    is_reason = len(head) > 1 or re.match("because|since|as |due", said[len(head) :].strip(" ,;"))
    if (
        not reason
        or not is_reason
        or NO_REASON.search(said[len(head) :])
        or any(_whole(part, table) for part in reason)
    ):
        return ""
    return _whole(head, table)


def _whole(text: str, table: Mapping[str, str]) -> str:
    """The label that is all of a text; never a small "a" or "i", which may be a word."""
    return "" if re.fullmatch(r"\W*[ai]\W*", text) else table.get(_words(text), "")


def _words(text: str) -> str:
    """Stems in small, and signs that join or question them, with one blank between two; no "the" and no "option"."""
    words = re.findall(r"[^\W_]+|[?/|&+=<>%~]", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(INFLECTION.sub("", word) for word in words if word not in ("the", "option"))


@lru_cache(maxsize=256)
def _spellings(labels: tuple[Label, ...]) -> Mapping[str, str]:
    """Every spelling to its label's name, or to "" where two labels share it; a name is always its own label's."""
    table: dict[str, str] = {}
    for label in labels:
        name, meaning = label.name, label.meaning
        is_only = [other.stance for other in labels].count(label.stance) == 1
        also = SYNONYMS[label.stance].split(", ") if label.stance and is_only else []
        for text in (f"{name} {meaning}", f"{meaning} {name}", meaning, *name.split("/"), *also):
            table[_words(text)] = name if table.get(_words(text), name) == name else ""
    return table | {_words(label.name): label.name for label in labels} | {"": ""}
