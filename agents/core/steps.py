"""A step of a trajectory in words, for whoever watches one: the terminal, a chat program, the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.core.records import Event, ModelCall, Passage, Recall, Search, ToolCall
from ratchet.core.text import plain_line, plain_text

EXCERPT = 160
"""Characters of a passage that are shown."""


@dataclass(frozen=True)
class Step:
    """A step as text without terminal commands. What models and documents say in it is untrusted."""

    role: str
    text: str
    problem: str = ""
    """Its fault."""
    found: str = ""
    """The result, where it is text and no passages."""
    passages: tuple[Passage, ...] | None = None
    """The passages found; None for a step that looks nothing up."""

    def __str__(self) -> str:
        below = [line for line in (self.problem, self.found) if line]
        below += passage_lines(self.passages) if self.passages is not None else []
        return "\n  ".join([f"{self.role}: {self.text}", *below])


def describe_step(event: Event) -> Step:
    """Describe an event in words."""
    if isinstance(event, ModelCall):
        read = f"read in spite of: {', '.join(event.repairs)}" if event.repairs else ""
        problem = f"malformed: {event.error}" if event.parse == "malformed" else read
        return Step(event.role, plain_text(event.text), plain_text(problem))
    if isinstance(event, Search):
        ranks = f"{event.source}, ranks {event.offset + 1} to {event.offset + event.k}"
        text = plain_text(f"searches: {event.query}  ({ranks})")
        return Step(event.role, text, plain_line(event.error), passages=None if event.error else event.passages)
    if isinstance(event, ToolCall):
        text = plain_text(f"calls {event.tool}: {json.dumps(event.arguments, ensure_ascii=False)}")
        said = bool(event.text or event.error)
        return Step(event.role, text, excerpt(event.error), excerpt(event.text), None if said else event.passages)
    if isinstance(event, Recall):
        text = plain_text(f"recalls evidence on: {', '.join(event.entities)}")
        return Step(event.role, text, passages=event.passages)
    return Step(event.role, plain_text(event.text))


def passage_lines(passages: Sequence[Passage]) -> list[str]:
    """One line for each passage, or one that says that there is none."""
    return [
        f"{plain_line(passage.id)}  {passage.score:.2f}  {plain_line(passage.title)}  {excerpt(passage.text)}"
        for passage in passages
    ] or ["nothing found"]


def excerpt(text: str) -> str:
    """The beginning of a text, in one line."""
    text = plain_line(text)
    return text if len(text) <= EXCERPT else text[:EXCERPT] + "…"
