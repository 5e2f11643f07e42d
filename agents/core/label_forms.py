"""The label that a model's reply gives, read from forms and never from prose.

A label counts where it
- stands alone: on a line, or as the first or the last sentence;
- stands behind a cue: "Verdict: ...", "So the answer is ...", a heading, a tag <answer>, a JSON field, a box;
- is marked (bold, in quotes, in the last sentence also in the task's own capitals) and begins its line or stands behind
  words like "the claim is". "The claim is false." as the last sentence needs no mark.
In these forms every inflection of its name, its synonyms by stance and the text of a choice count, each as a whole:
"half true" is not "true", and "A beta-lactam" is not "A". What stands behind it may be a reason and nothing else. The
last line decides, unless the line above it gives another label; where the last line has no form, all cues above must
agree, and without a cue all the rest. Else it is "": a wrong label costs more than one that is asked for again. The
words are English.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial

from agents.core.prompts.chain_of_thought import first_sentence
from ratchet.records import Label, Stance
from ratchet.words import nfkc

SYNONYMS: dict[Stance, str] = {
    "true": "support, true, correct, accurate, entail, entailment",
    "false": "refute, false, incorrect, inaccurate, contradict, untrue, disprove",
    "unknown": "NEI, not enough info, not enough information, not enough evidence, insufficient info, unknown, "
    "insufficient information, insufficient evidence, unverifiable, cannot be determined, cannot be verified",
    "mixed": "conflicting, conflicting evidence, mixed, mixed evidence, cherry picking",
}
"""What a label of a stance is called elsewhere, where it is the task's only one of that stance."""
pattern = partial(re.compile, flags=re.IGNORECASE | re.DOTALL | re.MULTILINE)
INFLECTION = pattern(r"(?<=\w{4})(?:ed|es|ing|ions?|s|e)\b")
NOUN = (
    r"(?:(?:(?:final|overall|correct|right|best|most \w+|appropriate|own|chosen|predicted|proper|short)[ _])*"
    r"(?:answer|verdict|label|conclusion|decision|judge?ment|ruling|classification|prediction|rating|determination"
    r"|assessment|choice|option|stance|veracity|result|output|response))"
)
SO = r"(?:so|thus|therefore|hence|then|finally|overall|in (?:conclusion|summary|short))"
I_SAY = r"\b(?:I|we)(?:'d| (?:would|will|can|have to|therefore|thus|still))* "
BEFORE = (
    rf"(?:.*[,;\u2013\u2014]|(?:{NOUN}|{SO}|step \w+)\W*:|.*\b(?:and|lead(?:s|ing)(?: us)? to|{SO})"
    rf"|(?:.*[,;] |{SO} )?{I_SAY}(?:conclude|believe|think|say|find|maintain|hold|stand by|am (?:sure|confident))"
    r"(?: that)?)?\W*"
)
"""What may stand before a cue: nothing, a clause of its own, or "I conclude that"."""
CUE = pattern(
    rf"{BEFORE}(?:(?:(?:the|my|our|an?) )?{NOUN}(?: here| (?:to|for|of|on) (?:the|this) (?:\w+ )?"
    r"(?:claim|question|statement)[^.:;,?]{0,100}| \(\w+\))?\s*"
    r"(?:(?:is|remains|(?:w|sh)ould be|must be)\b(?: therefore| thus| clearly)?\s*:?|[:=\u2013\u2014]|\s->?)+\s*"
    rf"(?:(?:that )?(?:the (?:claim|statement)|it|this|there) is |the (?:evidence|document) )?|{SO}\s*[:,(]"
    rf"|{I_SAY}(?:(?:choose|select|pick|vote for|go with|answer|(?:(?<=would )|(?<='d ))say)(?: with)?"
    r"|(?:label|classify|rate) (?:it|(?:the|this) claim) as)\b)\W*(?:(?:the )?(?:option|choice|label|answer)\b)?\W*"
)
CLAIM = pattern(
    rf"{BEFORE}(?:the|this) (?:\w+ )?(?:(claim|statement)|evidence|documents?|passages?)(?: provided)?"
    r"((?: (?!(?:not|no|never|neither|cannot|may|might|would|said|says?|thought)\b)[^\s,;:?]+){0,12}?"
    r" (?:is|are|should be|must be|can be)(?: best)?(?: label+ed| classified| rated| categori[sz]ed)?(?: as)?)?"
    r"(?: (?:indeed|clearly|directly|explicitly|fully|factually|thus|therefore|also))?\W+"
)
"""All that a sentence has before its label: whatever that looks like, or where it is marked or ends the reply."""
NOT_OWN = pattern(
    r"\b(?:if|unless|whether|suppos\w+|assum\w+|opponents?|other (?:side|agent|debater|one)s?|agent|side|debater|user"
    r"|people|critics|someone|some (?:say|think|believe))\b|\bthat\s*,|^\W*(?:had|were)\b"
)
"""In what stands before: a condition or somebody else's view."""
NOTHING = pattern(
    r"(?:[^\w?/|&+]|\[\d+\])*(?:the claim|by document \[?\d+|(?:by|in) the (?:\w+ )?(?:evidence|documents?)"
    r"|to (?:verify|decide|determine|confirm|support|tell)\b[^?;,]*)?[^\w?/|&+]*"
)
REASON = pattern(
    r"(?!.*(?:\?|, or ))[\W_]*(?:because|since|due to|as (?:the|it|there|no|both|this|stated))\b"
    r"|(?!.*, or )\W*[.,;:(\u2013\u2014-]\W*(?:this|it|explanation|reason(?:ing)?|rationale|(?:and )?not|rather than)\b"
)
REMARK = pattern(
    r"[\s*\"'\u201d)]*(?:[,;(\u2013\u2014]|\s-\s|:(?!\W*(?:no|none|nothing|neither)\b))"
    r"(?!\W*(?:\w+\W+){0,2}(?:but|or|and|if|unless|although|though|however|maybe|perhaps|possibly|probably|provided"
    r"|says?|said|mostly|partly|according|then|which|wrong|incorrect)\b)"
    r"(?!.*(?:\b(?:unsure|uncertain|depend\w*|not (?:sure|certain)|but I|or (?:maybe|rather))\b|\?))"
)
"""What may stand behind a label in its sentence."""
OPEN_LINE = pattern(
    r"(?:\b(?:not|never|nor|or|than)|n't)[^\w.!?]*\Z|\b(?:options|labels|choices|opponent|other|agent)\b.*:\W*\Z"
    r"|'s \w+:\W*\Z"
)
TAKES_BACK = pattern(
    r"\W*(?:but|however|though|yet|wait|correction|actually|no(?=[,.:;!])|or|just|that is|is|would"
    r"|I (?:can|do|am|would|doubt)\w*)\b"
)
"""What takes a label away in the line before the last one, and at the beginning of what stands behind any."""
MARKED = pattern(r"(\*\*|__|[`*\"\u201c])(.+?)(?:\1|\u201d)")
MARKUP = pattern(r"\*\*|__|[`*\"\u201c\u201d$]|^\s*#+")
NEXT_TASK = pattern(r"[\W_]*(?:claim|question)\W*:")
REWRITES = (
    (pattern(r"^[ \t]*>[^\n]*"), ""),
    (pattern(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}"), r"\1"),
    (pattern(r"\\boxed\s*\{([^{}]*)\}\$?"), r"\nAnswer: \1\n"),
    (pattern(rf"[\"']{NOUN}[\"']\s*:\s*[\"']?([^\"'\n,}}]*)[\"']?"), r"\nAnswer: \1\n"),
    (pattern(rf"<({NOUN})>([^<>]*)</\1>"), r"\nAnswer: \2\n"),
    (pattern(rf"^[*# \t]*\d+[.)][* \t]*(?={NOUN})"), ""),
    (pattern(rf"^[#*_ \t]*{NOUN}[#*_: \t]*\n\s*"), "Answer: "),
)
"""Quoted lines away; boxes, fields, tags and headings as a cue on a line of its own."""


def find_label(text: str, labels: Sequence[Label]) -> str:
    """The label that a text gives in one of the forms at the head of this file, in the task's own spelling, or ""."""
    table = _spellings(tuple(labels))
    text = nfkc(text).replace("\u2019", "'")
    for pattern, form in REWRITES:
        text = pattern.sub(form, text)
    lines = [line.strip() for line in text.splitlines() if _words(line) or table.get(line.strip())]
    ends = [end for end in range(1, len(lines)) if NEXT_TASK.match(lines[end])]  # a model may go on with another task
    return next((label for end in (*ends[:3], len(lines)) if (label := _decide(lines[:end], table))), "")


def _decide(lines: Sequence[str], table: Mapping[str, str]) -> str:
    forms = [form for place in range(len(lines)) for form in _forms(lines, place, table)]
    if not forms:
        return ""
    last = len(lines) - 1
    place, label, weight = forms[-1]
    heads = {_whole(parts[0], table) for line in lines[-2:] if len(parts := re.split(r"[:.)]\s", line, maxsplit=1)) > 1}
    is_list = len(heads - {""}) > 1 and not any(weight for place, _, weight in forms if place < last - 1)
    if is_list or (place == last and last and OPEN_LINE.search(lines[-2])):
        return ""
    if place == last and weight == 2:
        forms = [form for form in forms if form[0] >= last - 1]
    found = {label for _, label, weight in forms if weight or place == last} or {label for _, label, _ in forms}
    return label if len(found) == 1 else ""


def _forms(lines: Sequence[str], place: int, table: Mapping[str, str]) -> Iterator[tuple[int, str, int]]:
    """(number of the line, label, weight) of a line's forms; weight 0: alone or marked, 1: behind a cue, 2: behind a
    cue that calls it final, or alone on the last line."""
    line, below = lines[place], "".join(lines[place + 1 : place + 2])
    if label := _whole(line, table):
        if not TAKES_BACK.match(below):
            yield place, label, 2 * (not below)
        return
    is_first = place == 0
    while line:
        end = first_sentence(line)
        sentence, line = line[:end], line[end:].strip()
        behind = line or below
        if not TAKES_BACK.match(behind):
            if (label := _whole(sentence, table)) and (is_first or not behind):
                yield place, label, 0
            for label, weight in _said(sentence, table, is_final=not behind):
                yield place, label, weight
        is_first = False


def _said(sentence: str, table: Mapping[str, str], is_final: bool) -> Iterator[tuple[str, int]]:
    """The labels that a sentence gives, each with its weight."""
    marked = {label for _, span in MARKED.findall(sentence) if (label := _whole(span, table))}
    plain = MARKUP.sub("", sentence).strip()
    plain = plain if len(plain) < 600 else f"... {plain[-600:]}"
    for match in re.finditer(r"\w+", plain):
        before = plain[: match.start()]
        label, name, behind = _leading(plain[match.start() :], table)
        if not label or NOT_OWN.search(before):
            continue
        if CUE.fullmatch(before):
            if not (len(name) == 1 and name.islower() and not behind and before.endswith("is ")):  # "is a ..."
                yield label, 1 + ("final" in before.lower())
        elif claim := CLAIM.fullmatch(before):
            own = (name == label and not name.islower()) or (claim[1] and claim[2] and plain[-1] in ".!")
            if label in marked or (is_final and own):
                yield label, 0
        elif label in marked and not _words(before) and MARKED.match(sentence):
            yield label, 0


def _leading(text: str, table: Mapping[str, str]) -> tuple[str, str, str]:
    """(label, its name, rest) where a text begins with a label and goes on with nothing or with a reason."""
    for label, name in _beginnings(text, table):
        rest = text[len(name) :]
        other, said = next(_beginnings(rest, table), (label, ""))
        if NOTHING.fullmatch(rest) or REASON.match(rest) or (other == label and (said or REMARK.match(rest))):
            return label, name, rest
    return "", "", ""


def _beginnings(text: str, table: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The labels that a text begins with, each with how it is spelled there, the longest first."""
    words = [*re.finditer(r"\w+", text[:400])]
    if words and f"^{words[0][0].casefold()[:2]}" in table:
        for match in reversed(words):
            if label := _whole(text[: match.end()], table):
                yield label, text[: match.end()]


def _whole(text: str, table: Mapping[str, str]) -> str:
    """The label that is all of a text."""
    said = _words(text) if "?" not in text else ""
    return table.get(text.strip()) or (table[said] if said in table else table.get(_stem(said), ""))


def _words(text: str) -> str:
    """Letters and digits in small, whatever stands between them one blank, without a "the" before them."""
    return re.sub(r"^the (?=.)", "", re.sub(r"[\W_]+", " ", nfkc(text).casefold()).strip())


def _stem(words: str) -> str:
    return INFLECTION.sub("", words).replace(" ", "")


@lru_cache(maxsize=256)
def _spellings(labels: tuple[Label, ...]) -> Mapping[str, str]:
    """What a label is called, to its name, or to "" where two labels share it; names first, then meanings, then the
    rest. With "^" before them the first two letters of all."""
    tiers: list[list[tuple[str, str]]] = [[], [], [], []]
    for label in labels:
        name, meaning = label.name, label.meaning
        is_only = [other.stance for other in labels].count(label.stance) == 1
        also = (SYNONYMS[label.stance] if label.stance and is_only else "").split(", ")
        tiers[0] += [(name, name)]
        tiers[1] += [(_words(text), name) for text in (name, f"option {name}", f"{name} {meaning}")]
        tiers[2] += [(_words(meaning), name)]
        tiers[3] += [(_stem(_words(text)), name) for text in (name, *name.split("/"), *also) if label.stance]
    table = {f"^{start}": "" for tier in tiers for start in ("th", *(spelling[:2].strip() for spelling, _ in tier))}
    for tier in tiers:
        new: dict[str, str] = {}
        for spelling, name in tier:
            new[spelling] = name if new.get(spelling, name) == name else ""
        table = new | table
    return table | {"": ""}
