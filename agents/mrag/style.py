"""What a style of prompting decides: the words, and which fields a model must emit. There are `paper` and `brief`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from agents.mrag.schemas import BriefQuery, Fields, Query
from agents.mrag.work import Page, Work
from ratchet.records import Passage


@dataclass(frozen=True)
class Verdict:
    """The searcher's judgement of one page."""

    relevant: tuple[Passage, ...]
    end: bool
    new_query: str
    """Empty: go on with the same query."""


@dataclass(frozen=True)
class Found:
    """What the searcher's call returned."""

    documents: tuple[Passage, ...]


@dataclass(frozen=True)
class Refused:
    """An agent that could not act, and why."""

    error: str


class Style(Protocol):
    query: type[Query] | type[BriefQuery]
    """Schema of the searcher's first turn."""

    def system(self, agent: str) -> str:
        """The fixed instructions that open an agent's conversation."""
        ...

    def examples(self, agent: str) -> Sequence[tuple[str, str]]:
        """Worked exchanges that come before an agent's first."""
        ...

    def opening(self, question: str) -> str:
        """The coordinator's first message."""
        ...

    def action(self, offered: tuple[str, ...]) -> type[BaseModel]:
        """Schema of the coordinator's turn, when these agents may be called."""
        ...

    def read(self, action: Any) -> tuple[str, Fields | None]:
        """The agent that an action names, and its input where the coordinator writes it."""
        ...

    def give(self, agent: str, given: Fields | None, work: Work) -> str:
        """The message with which an agent is called."""
        ...

    def output(self, agent: str) -> type[Fields]:
        """Schema of what an agent other than the searcher returns."""
        ...

    def report(self, agent: str, output: Fields | Found | Refused) -> str:
        """The coordinator's next message: what the called agent returned."""
        ...

    def results(self, page: Page) -> str:
        """The searcher's message after a retrieval."""
        ...

    def review(self, documents: int, last: bool) -> type[BaseModel]:
        """Schema of the searcher's judgement of so many documents; `last` when the search ends with it."""
        ...

    def verdict(self, review: Any, page: Page) -> Verdict: ...


def passage_text(passage: Passage) -> str:
    return f"{passage.title}: {passage.text}" if passage.title else passage.text
