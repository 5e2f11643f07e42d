"""What an episode checks of a system's answer: documents that no model was shown, and text that was cut off.

Both are checked here and not in the systems, so that a system of one's own cannot forget them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ratchet.core.records import Passage, Question, Trajectory
from ratchet.core.words import padded_words

RUN = 8
"""Words of a document in a row that tell that it was shown."""
ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrt])")


def shown_passages(passages: Iterable[Passage], said: Iterable[str]) -> tuple[Passage, ...]:
    """The passages of which a part is in one of the texts that models were given, as it is or in JSON: a run of `RUN`
    words, or all of a shorter one."""
    prompts = [padded_words(ESCAPED.sub(_unescaped, text)) for text in said]
    return tuple(passage for passage in passages if any(_is_in(passage, prompt) for prompt in prompts))


def _is_in(passage: Passage, prompt: str) -> bool:
    words = padded_words(passage.text).split() or padded_words(passage.title).split()
    last = max(len(words) - RUN, 0)
    runs = {min(at, last) for at in range(0, len(words), RUN)}
    return any(f" {' '.join(words[at : at + RUN])} " in prompt for at in runs)


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else " "


def why_cut_off(question: Question, trajectory: Trajectory) -> str:
    """Why the answer is no whole one: it ends where a reply was cut off, or is empty because the last reply could not
    be read; "" else. A label is whole wherever its reply ended."""
    text, calls = trajectory.answer.strip(), trajectory.model_calls
    if not text:
        last = calls[-1] if calls else None
        return f"{last.role}: {last.error}" if last is not None and last.parse == "malformed" else ""
    if question.labels:
        return ""
    ending = [call for call in calls if call.text.rstrip().endswith(text)]
    if any(call.parse != "malformed" for call in ending):
        return ""
    return next((f"{call.role}: {call.error}" for call in ending if call.finish_reason != "stop"), "")
