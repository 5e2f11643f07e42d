"""Thoughts of a model apart from what it says: drafts in a thought are no answer, no action and no score.

Reasoning models write a thought between markers before the answer. The markers here are those of published chat
templates: XML-like tags (DeepSeek R1, Qwen 3, GLM 4.5, LFM 2.5, Nemotron 3, SmolLM 3, EXAONE Deep, Seed-OSS), [THINK]
(Magistral), <|START_THINKING|> (Command A), <|begin_of_thought|> (OpenThinker), ◁think▷ (Kimi), <|channel>thought
(Gemma 4), to=self (Muse Glimmer) and the channels of gpt-oss, whose answer is in the channel `final`. A call of a tool
ends a thought of the last two, and is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ratchet.inference.completion import Completion

TAG = r"(?:seed:)?(?:think(?:ing)?|thoughts?|reasoning)"
OPENING = re.compile(
    rf"<{TAG}>|\[THINK\]|<\|START_THINKING\|>|<\|begin_of_thought\|>|◁think▷|<\|channel>thought\b"
    r"|(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary(?! ?(?:json|to=|<\|constrain)))\b(?:<\|message\|>)?"
    r"|(?:<\|start\|>assistant)? to=self<\|message\|>",
    re.IGNORECASE,
)
CLOSING = re.compile(
    rf"</{TAG}>|\[/THINK\]|<\|END_THINKING\|>|<\|end_of_thought\|>|◁/think▷|<channel\|>"
    r"|(?:(?:<\|end\|>)?<\|start\|>assistant)?<\|channel\|>final\b(?: ?<\|constrain\|>\w+)?<\|message\|>"
    r"|<\|end\|><\|start\|>assistant(?=(?:<\|channel\|>commentary)? *to=functions\.|\s*\Z)"
    r"|(?<!function_calls>)<\|eom\|>\s*(?:<\|start\|>assistant[^<]*<\|message\|>)?",
    re.IGNORECASE,
)
QUOTES = "`\"'“”‘’"
PUNCTUATION = ".,;:!?)"
MAX_OBJECTS = 16
"""Places from which the rest of a text is tried as one JSON object."""


@dataclass(frozen=True)
class Thinking:
    """The marks of a model whose thoughts begin and end with single tokens."""

    start: int | None
    """The token with which the model begins a thought; None where the prompt has begun it."""
    end: int
    """The token that closes a thought."""
    closing: tuple[int, ...]
    """The ids that the chat template writes between a thought and the answer, `end` included."""
    budget: int | None = None
    """Tokens of a thought after which it is closed; None: it may take all tokens of the reply."""


def without_thoughts(text: str) -> str:
    """Return what follows the last closing marker of a thought; "" where a thought is opened and never closed.

    A reply may lack the opening marker, which some templates put into the prompt. A marker that a sentence or a JSON
    string mentions is text: it is quoted, punctuation follows it, or what stands around it is one whole JSON object. An
    opening marker between blanks, within a line, is text too. One with nothing before it is never text.
    """
    found, first = list(CLOSING.finditer(text)), len(text) - len(text.lstrip())
    opened = [
        one for one in OPENING.finditer(text) if one.start() <= first or not _is_mentioned(text, one, within_line=True)
    ]
    if not found and not opened:
        return text
    for start in (0, *(one.end() for one in found[: MAX_OBJECTS - 1])):
        if _is_object(text[start:]):
            return text[start:].lstrip() if start else text
    closed = [one for one in found if one.start() <= first or not _is_mentioned(text, one)]
    if not closed and opened and found and opened[0].start() < found[-1].start():
        closed = found
    end = closed[-1].end() if closed else 0
    if any(one.start() >= end for one in opened):
        return ""
    return text[end:].lstrip() if end else text


def split_thought(text: str) -> tuple[str, str]:
    """Return (the thought without its markers, what follows it) of a reply."""
    rest = without_thoughts(text)
    before = text[: len(text) - len(rest)]
    return CLOSING.sub("", OPENING.sub("", before)).strip(), rest


def thought_length(completion: Completion, opening: str, decode: Callable[[Sequence[int]], str]) -> int:
    """Count a completion's ids that are its thought, up to the mark that closes it or what was inserted there; all
    where nothing follows. `opening`: the beginning of the reply in the prompt (`ChatFormat.reply_opening`)."""
    text = opening + completion.text
    said = without_thoughts(text)
    if not said and completion.text:
        return len(completion.ids)
    thought = text[: len(text) - len(said)].rstrip()[len(opening) :]
    return max(count_ids(completion.ids, thought, decode), completion.inserted[1])


def count_ids(ids: Sequence[int], wanted: str, decode: Callable[[Sequence[int]], str]) -> int:
    """Count the ids that it takes to say the text that they begin with."""
    low, high = 0, len(ids) if wanted else 0
    while low < high:
        middle = (low + high) // 2
        # Not merely as long: a letter of several bytes, cut between two tokens, decodes to a stand-in for it.
        if decode(ids[:middle]).startswith(wanted):
            high = middle
        else:
            low = middle + 1
    return low


def _is_mentioned(text: str, marker: re.Match[str], within_line: bool = False) -> bool:
    """Return whether a sentence names the marker. `within_line`: blanks around it within its line say so too."""
    at = marker.start()
    before, after = text[max(0, at - 1) : at], text[marker.end() : marker.end() + 1]
    if (before and before in QUOTES and after and after in QUOTES) or (after and after in PUNCTUATION):
        return True
    return within_line and before in (" ", "\t") and after in ("", " ", "\t")


def _is_object(text: str) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    try:
        json.loads(text, strict=False)  # a grammar may allow control characters in a text
    except (ValueError, RecursionError):
        return False
    return True
