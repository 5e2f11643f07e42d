"""Which label a text in prose asserts: the lenient reading of a verdict that is out of form.

A label counts only where the text asserts it. What is denied, doubted, asked, or said by somebody else is no verdict,
and neither is the opposite of a label that is denied. Where there is doubt the reading is "", no label:

- The last line that names a label decides. It may stand alone on the line, behind words like "the answer is", or at
  the line's beginning and before a mark; else it is named in passing, and all names on that line must agree. Labels of
  fewer than four letters ("A", "no") are never named in passing.
- Of labels one of which is part of the other ("Supported" in "Not Supported"), the longer one is named. Its own words
  are no denial of it.
- A word of denial (no, not, none, neither, never, cannot, fails, without, insufficient, hardly...) or of doubt (may,
  might, if, whether, unclear...) before the label, in its own clause, takes the assertion away. A clause ends at a
  semicolon, at "but", at ", so" and the like, and at the comma after "although ..."; other commas end none. Behind the
  label a condition, a question, an alternative, "not sure" and "... is wrong" count too.
- When the last name on a line is not asserted, the line comes to nothing. "X, not Y" names X alone. Lines that go
  through the labels, one after the other, choose none of them.
- The last word counts: "I cannot tell" after the verdict, or "does not support it" after SUPPORTS, takes it back.
The words are English. A text that says it in other ways may be misread, as a person in a hurry would.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agents.core.prompts.chain_of_thought import first_sentence
from ratchet.records import Label

CUE = re.compile(
    r"\b(?:answer|verdict|label|conclusion|choice|option|choose|pick|select)\b(?:[^.:]{0,40}?\b(?:is|would be))?"
    r"[\s:*_`\"'(\[]*$",
    re.IGNORECASE,
)
"""What a text says right before it states its verdict."""
ABOUT = re.compile(r"\b(?:answer|verdict|label|choice|option|choose|pick|select)\b[^.:]{0,40}$", re.IGNORECASE)
MARK = re.compile(r"\W*[,.:;)\]]")
SUBJECT = r"(?=\s*(?:it|the|this|these|i|we|they|there|my|our)\b)"
CLAUSE = re.compile(
    r";|\bbut\b|,\s*(?:and\s+)?(?:so(?! (?:far|long|much))|therefore|thus|hence|consequently|yet|because)\b"
    rf"|,\s*and\b{SUBJECT}|^\W*no\s*(?:[,.!:;]|-+\s)",
    re.IGNORECASE,
)
"""Where a new clause starts. An interjection ("No, it ...") denies nothing."""
OPENER = re.compile(
    rf"^\W*(?:and\s+)?(?:although|though|even though|while|since|because|as|given)\b[^,]*,{SUBJECT}", re.IGNORECASE
)
HARMLESS = re.compile(
    r"\b(?:no|without(?: a| any)?|beyond(?: a| any| all)?) (?:reasonable )?doubt\b|\bnot (?:only|just|merely)\b"
    r"|\b(?:i|we) would (?:say|choose|pick|select|answer|conclude)\b"
    r"|\b(?:answer|verdict|label)\b[^.:]{0,40}?\bwould be\b"
    rf"|,\s*(?:which|who|whose|where)\b[^,.;:]*,{SUBJECT}",
    re.IGNORECASE,
)
"""What looks like a denial or a doubt and is none."""
DENIAL = re.compile(
    r"\b(?:no|not|none|neither|nor|never|nothing|nobody|nowhere|cannot|without|hardly|barely|scarcely|seldom|rarely|few"
    r"|little|unable|impossible|unlikely|insufficient|inadequate|absence|far from|doubt\w*|disagree\w*"
    r"|den(?:y|ies|ied)|fail(?:s|ed|ing)?|lack(?:s|ed|ing)?|reject\w*|refus(?:e|es|ed)|hesitate|exclude"
    r"|rul(?:e|es|ed) out|(?:false|untrue|wrong|incorrect) (?:that|to))\b|n't\b",
    re.IGNORECASE,
)
DOUBT = re.compile(
    r"\b(?:may|might|could|would|either|maybe|potentially|partly|partially|assum\w+|suppos\w+)\b", re.IGNORECASE
)
"""Before a label, as a denial."""
UNDECIDED = (
    r"unclear|uncertain\w*|unsure|undecided|inconclusive|not (?:sure|certain|clear|known)|hard to (?:say|tell)"
    r"|(?:cannot|can't|could not|couldn't|unable to|impossible to) (?:say|tell|know|determine|decide|verify|confirm"
    r"|be (?:sure|certain|known|determined|decided|verified|confirmed))"
)
TAKES_BACK = re.compile(rf"\b(?:{UNDECIDED})\b", re.IGNORECASE)
OPEN = re.compile(
    rf"\b(?:{UNDECIDED}|if|unless|whether|provided that|depend\w*|perhaps|possibly)\b|\?",
    re.IGNORECASE,
)
"""Before a label in its clause, or anywhere behind it in its sentence."""
OWN_DOUBT = re.compile(
    r"\b(?:if|unless|provided that|depend\w*|perhaps|possibly|unsure|not (?:sure|certain))\b|\?", re.IGNORECASE
)
"""The same behind a label that says itself that something is open: "it is unclear" is then a reason for it."""
SPEAKER = (
    r"(?:opponents?|other (?:sides?|agents?|debaters?|one)|agent \w+|(?:affirmative|negative) side|debaters?|user"
    r"|critics|(?:some|many|most|other) people|some|others|they|he|she|you|someone)"
)
OTHERS = re.compile(
    rf"\b{SPEAKER}\b[^.;]{{0,40}}?\b(?:sa(?:y|ys|id)|claim(?:s|ed)|argu(?:e|es|ed)|thinks?|thought|believ(?:e|es|ed)"
    r"|answer(?:s|ed)|stat(?:es|ed)|conclud(?:e|es|ed)|suggest(?:s|ed))\b"
    rf"|\baccording to (?:the |an? )?{SPEAKER}\b"
    rf"|\b(?:{SPEAKER}'s?|their|his|her|your)\s+(?:\w+ )?(?:view|verdict|label|answer|opinion|position)\b",
    re.IGNORECASE,
)
"""Somebody else's view."""
ONE_OF = re.compile(
    r"\b(?:first|second|third|fourth|former|latter|one|another)\b[^.;,]{0,20}\blabels?\b", re.IGNORECASE
)
"""What the labels are is being listed."""
RESTATED = re.compile(r"\W*(?:claim|question)\W*:(?:\W*\w+){4}", re.IGNORECASE)
"""A line that repeats the task."""
WRONG = re.compile(
    r"[\W_]*(?:label|answer|verdict|option|choice)?[\W_]*(?:(?:is|was|are|does|do|did|would|will|can|could|should|has|must"
    r"|seems)(?:n't| not| never)\b|cannot\b|(?:is|was|seems|would be)\s+(?:(?:the|a|an|also|clearly)\s+)?"
    r"(?:wrong|incorrect|inaccurate|false|untrue|mistaken|invalid|unlikely)\b"
    r"|(?:is|can be|was) (?:excluded|ruled out)\b)|\s+(?:no|nothing|none|neither|hardly|little|contradicts?|refutes?"
    r"|disproves?)\b",
    re.IGNORECASE,
)
"""Right behind a label: it is not the one, or what it says is said of nothing."""
CONTRAST = re.compile(r"(?:,|\band|\bbut)[\W_]*not[\W_]*$|\b(?:rather than|instead of)[\W_]*$", re.IGNORECASE)
BUT = re.compile(r"[\W_]*but(?:\s+(?:rather|instead))?[\W_]*", re.IGNORECASE)
JOINED = re.compile(r"[\W_]*(?:(?:and|or|nor|perhaps|maybe|either)\b[\W_]*)*", re.IGNORECASE)
"""All that stands between two alternatives."""
NEAR = 400
"""Characters around a label that are read."""


@dataclass(frozen=True)
class Name:
    """A label in a line."""

    label: str
    start: int
    end: int
    stated: bool
    """Behind words like "the answer is", or at the line's beginning and before a mark."""
    asserted: bool


def mentioned_label(text: str, labels: Sequence[Label]) -> str:
    """The label that a text out of form asserts, "" where that is not clear. See the head of this file."""
    lines = unicodedata.normalize("NFKC", text).replace("\u2019", "'").splitlines()
    denied: set[str] = set()
    undecided = False
    while lines:
        if ends_in_label_list(lines, labels) or _listed(lines, labels):
            return ""
        line = lines.pop()
        label, after = label_alone(line, labels), ""
        if not label:
            names = _names(line, labels)
            label = _verdict(names)
            after = line[names[-1].end :] if names else line
            if names and not label:
                return ""
        denied |= _denied_forms(after, labels)
        undecided = undecided or TAKES_BACK.search(HARMLESS.sub(" ", after)) is not None
        if label:
            return "" if label in denied or (undecided and label not in _open_ended(labels)) else label
    return ""


def normalised_words(text: str) -> str:
    """Letters and digits in small, whatever stands between them one blank."""
    return re.sub(r"[\W_]+", " ", unicodedata.normalize("NFKC", text).casefold()).strip()


def label_alone(line: str, labels: Sequence[Label]) -> str:
    """The label that makes up the line; "" where none does, or where two differ by marks alone."""
    exact = [label.name for label in labels if label.name == line.strip()]
    said = normalised_words(line)
    alike = [
        label.name
        for label in labels
        if said and said in (normalised_words(label.name), normalised_words(f"{label.name} {label.meaning}"))
    ]
    found = exact or alike
    return found[0] if len(found) == 1 else ""


def ends_in_label_list(lines: Sequence[str], labels: Sequence[Label]) -> bool:
    """The last line is a label, and so is the one above it, and another one."""
    found = {label_alone(line, labels) for line in lines[-2:]}
    return len(found) == 2 and "" not in found


def _listed(lines: Sequence[str], labels: Sequence[Label]) -> bool:
    """The last line begins with a label, and the one above it with another: they go through them."""
    found = {_begins(line, labels) for line in lines[-2:]}
    return len(found) == 2 and "" not in found


def _begins(line: str, labels: Sequence[Label]) -> str:
    """The label at the beginning of a line, before a mark where it is a small word."""
    at = re.search(r"\w", line)
    named = next(_found(line[at.start() : at.start() + NEAR], labels), None) if at else None
    if not at or not named or named[0].start():
        return ""
    return named[1] if len(named[1]) > 3 or MARK.match(line, at.start() + named[0].end()) else ""


def _verdict(names: Sequence[Name]) -> str:
    """What a line's names come to: the last one that is stated, else the only one that is asserted."""
    stated = [name for name in names if name.stated]
    if stated and stated[-1].asserted:
        later = [name for name in names if name.start > stated[-1].start and name.label == stated[-1].label]
        return stated[-1].label if all(name.asserted for name in later) else ""
    asserted = {name.label for name in names if name.asserted}
    denied = {name.label for name in names if not name.asserted}
    clear = not stated and len(asserted) == 1 and not asserted & denied
    return names[-1].label if clear and names[-1].asserted else ""


def _names(line: str, labels: Sequence[Label]) -> list[Name]:
    """The labels that a line names as verdicts, in order. One of one letter counts in its own case only."""
    if RESTATED.match(line):
        return []
    found = list(_found(line, labels))
    open_ended = _open_ended(labels)
    first = re.search(r"\w", line)
    names: list[Name] = []
    last = 0
    for number, (match, label) in enumerate(found):
        before, behind = line[max(0, match.start() - NEAR) : match.start()], line[match.end() : match.end() + NEAR]
        begins = first is not None and first.start() >= match.start() and MARK.match(behind) is not None
        stated = begins or CUE.search(before[-80:]) is not None
        about = len(label) == 1 and ABOUT.search(before[-80:]) is not None
        between, last = line[last : match.start()], match.end()
        stated = stated or bool(names and not names[-1].asserted and BUT.fullmatch(between))
        infinitive = match[0].islower() and not label.islower() and before.lower().endswith(" to ")
        if not (stated or about or len(label) > 3) or (number and CONTRAST.search(between)) or infinitive:
            continue
        following = found[number + 1] if number + 1 < len(found) else None
        choice = re.match(r"\s*(?:/|\||or\b)", behind) is not None
        choice = choice or (number > 0 and _alternatives(found[number - 1][1], between, label))
        if following is not None:
            choice = choice or _alternatives(label, line[match.end() : following[0].start()], following[1])
        asserted = not choice and _asserted(before, behind, label in open_ended)
        if stated or len(label) > 3 or not asserted:
            names.append(Name(label, match.start(), match.end(), stated, asserted))
    return names


def _found(line: str, labels: Sequence[Label]) -> Iterator[tuple[re.Match[str], str]]:
    """Where labels stand, the longest first, each in the task's own spelling."""
    ordered = sorted(labels, key=lambda label: -len(label.name))
    spelled = [r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", label.name))) for label in ordered]
    either = "|".join(f"({words})" if len(words) == 1 else f"((?i:{words}))" for words in spelled)
    for match in re.finditer(rf"(?<!\w)(?:{either})(?!\w)", line):
        yield match, ordered[(match.lastindex or 1) - 1].name


def _alternatives(one: str, between: str, other: str) -> bool:
    """Two labels side by side. Small words ("no") are labels there only behind "and", "or" or a stroke."""
    joined = one != other and JOINED.fullmatch(between) is not None
    sizes = {len(one), len(other)}
    return joined and (min(sizes) > 3 or sizes == {1} or re.search(r"\w|[/|]", between) is not None)


def _asserted(before: str, behind: str, open_ended: bool = False) -> bool:
    """Whether a label between these texts is asserted. `open_ended`: it says itself that something is open."""
    while (end := first_sentence(before)) < len(before):
        before = before[end:]
    clause = CLAUSE.split(OPENER.sub("", HARMLESS.sub(" ", before)))[-1]
    if any(pattern.search(clause) for pattern in (DENIAL, DOUBT, OPEN, OTHERS, ONE_OF)):
        return False
    behind = HARMLESS.sub(" ", behind[: first_sentence(behind)])
    return not WRONG.match(behind) and not (OWN_DOUBT if open_ended else OPEN).search(behind)


def _open_ended(labels: Sequence[Label]) -> set[str]:
    return {label.name for label in labels if label.stance in ("unknown", "mixed")}


def _denied_forms(text: str, labels: Sequence[Label]) -> set[str]:
    """The labels that a text denies or doubts in another form of their word: "does not support it" for SUPPORTS."""
    found = set()
    for label in labels:
        stem = re.sub(r"(?:es|ed|s)$", "", label.name.casefold())
        if stem.isalpha() and len(stem) > 4:
            for match in re.finditer(rf"\b{stem}(?:e|s|es|ed|ing)?\b", text, re.IGNORECASE):
                near = text[max(0, match.start() - NEAR) : match.start()], text[match.end() : match.end() + NEAR]
                if not _asserted(*near):
                    found.add(label.name)
    return found
