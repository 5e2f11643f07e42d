"""What a style of prompting decides: the words, and which fields a model must emit. There are `paper` and `brief`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from agents.mrag.schemas import BriefQuery, Fields, Query
from agents.mrag.state import Page, State
from ratchet.records import Passage


@dataclass(frozen=True)
class PageJudgement:
    """The searcher's judgement of one page."""

    relevant: tuple[Passage, ...]
    end: bool
    new_query: str
    """Empty: go on with the same query."""


@dataclass(frozen=True)
class FoundDocuments:
    """What the searcher's call returned."""

    documents: tuple[Passage, ...]


@dataclass(frozen=True)
class Refusal:
    """An agent that could not act, and why."""

    error: str


class PromptStyle(Protocol):
    """The prompts and schemas of one style."""

    query: type[Query] | type[BriefQuery]
    """Schema of the searcher's first turn."""

    def system(self, agent: str) -> str:
        """The fixed instructions that open an agent's conversation."""
        ...

    def examples(self, agent: str) -> Sequence[tuple[str, str]]:
        """Worked exchanges that come before an agent's first."""
        ...

    def first_message(self, question: str) -> str:
        """The coordinator's first message."""
        ...

    def action_schema(self, offered: tuple[str, ...]) -> type[BaseModel]:
        """Schema of the coordinator's turn, when these agents may be called."""
        ...

    def read_action(self, action: Any) -> tuple[str, Fields | None]:
        """The agent that an action names, and its input where the coordinator writes it."""
        ...

    def agent_message(self, agent: str, given: Fields | None, state: State) -> str:
        """The message with which an agent is called."""
        ...

    def output_schema(self, agent: str) -> type[Fields]:
        """Schema of what an agent other than the searcher returns."""
        ...

    def report_message(self, agent: str, output: Fields | FoundDocuments | Refusal) -> str:
        """The coordinator's next message: what the called agent returned."""
        ...

    def results_message(self, page: Page) -> str:
        """The searcher's message after a retrieval."""
        ...

    def review_schema(self, documents: int, last: bool) -> type[BaseModel]:
        """Schema of the searcher's judgement of so many documents; `last` when the search ends with it."""
        ...

    def read_judgement(self, review: Any, page: Page) -> PageJudgement: ...


def passage_text(passage: Passage) -> str:
    """A passage with its title, where it has one."""
    return f"{passage.title}: {passage.text}" if passage.title else passage.text
