"""mRAG's settings, and the state of one trajectory: response, documents, queries and the agents' conversations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from pydantic import Field

from ratchet.agents.core.tools import Tools
from ratchet.core.config import Section
from ratchet.core.records import Passage
from ratchet.inference.chat import Dialogue

Agent = Literal["planner", "searcher", "reasoner", "summarizer", "validator", "answerer", "reviser", "finisher"]
AGENTS: tuple[Agent, ...] = get_args(Agent)
ALWAYS = ("answerer", "finisher")
"""Without these two no question could be answered."""
Length = Literal["any", "concise", "long"]
LENGTHS: dict[Length, str] = {
    "any": "",
    "concise": "Write at most 100 words.",
    "long": "Write a long response that covers every aspect of the question in detail.",
}
"""What the author of a response is told about its length."""


class Settings(Section):
    """mRAG's budgets, the agents on offer and the style of the prompts."""

    max_calls: int = Field(30, gt=0)
    """Maximum number of calls to agents."""
    documents_per_turn: int = Field(2, gt=0)
    """Number of documents that a turn of the searcher shows."""
    max_same_query: int = Field(5, gt=0)
    """Maximum number of retrievals of one query in the whole trajectory."""
    max_search_turns: int | None = Field(None, gt=0)
    """Maximum number of turns of one call of the searcher. Default: no limit, as in the paper."""
    agents: tuple[Agent, ...] = AGENTS
    """The agents on offer; answerer and finisher always are."""
    valid_moves: bool = False
    """Offer only what can change something: finisher and reviser once there is a response, and no agent twice in a row.
    The paper does not."""
    explanations: bool = True
    """Ask for the reason and explanation fields; small models do better without."""
    style: Literal["paper", "brief"] = "paper"
    """`brief`: short prompts for small models, with inputs filled in for the coordinator."""

    conversations: Literal["kept", "fresh"] = "kept"
    """An agent that is called again continues its conversation (table 2), or sees its input alone (section 3.2), the
    coordinator its history, and the reviser the response."""
    question: Literal["coordinator", "user"] = "coordinator"
    """The question that an agent is given: as the coordinator writes it (figures 15 to 21), or the user's own, as in
    the published code."""
    found: Literal["call", "all"] = "call"
    """The documents that the searcher reports: the relevant ones of this call (algorithm 2), or all since the
    trajectory began, as in the published code."""
    documents: Literal["relevant", "found"] = "relevant"
    """The documents that an answer is written from: those that the searcher judged relevant, as in the paper, or all
    that it found."""
    length: Length = "any"
    """Length of the response that is asked for: any (figure 21), at most 100 words (a switch of the published code), or
    long (section 4)."""

    @property
    def offered(self) -> tuple[Agent, ...]:
        return tuple(agent for agent in AGENTS if agent in self.agents or agent in ALWAYS)


NO_MORE = "There are no more documents for this query."
USED_UP = "This query has been used as often as is allowed."


@dataclass(frozen=True)
class Page:
    """The next documents of a query, each with the number by which the models know it."""

    query_id: int
    passages: tuple[tuple[int, Passage], ...]
    shown: Mapping[int, Passage]
    """All documents of the trajectory's pages, this one's among them, by number."""
    of_query: Collection[int]
    """The numbers on the query's pages, this one's among them."""
    remark: str = ""
    """Why there are none."""


@dataclass
class QueryState:
    """A query and the documents of it that were read."""

    id: int
    turns: int = 0
    shown: list[int] = field(default_factory=list)
    """The numbers of the documents read, in their order."""
    ended: bool = False
    """The index has nothing more."""


@dataclass
class State:
    """The documents, texts and conversations of one trajectory so far."""

    question: str
    tools: Tools
    settings: Settings
    answered: bool = False
    documents: dict[str, Passage] = field(default_factory=dict)
    """S of algorithm 1, by chunk id, in the order of finding."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    """(agent, what it said), for those whose output is neither documents nor a response."""
    dialogues: dict[str, Dialogue] = field(default_factory=dict)
    _queries: dict[str, QueryState] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _pages: dict[int, Passage] = field(default_factory=dict)
    _places: dict[str, tuple[int, int]] = field(default_factory=dict)
    _shown: dict[str, set[str]] = field(default_factory=dict)
    _notes_given: dict[str, int] = field(default_factory=dict)

    @property
    def response(self) -> str:
        """The latest."""
        return self.tools.so_far.text

    def add_document(self, passage: Passage) -> None:
        """A document supports the response, whatever comes after."""
        self.documents.setdefault(passage.id, passage)
        self.tools.so_far = replace(self.tools.so_far, passages=tuple(self.documents.values()))

    def dialogue(self, agent: str, system: str, examples: Sequence[tuple[str, str]]) -> Dialogue:
        """The agent's conversation of this trajectory, opened when it is first called."""
        if agent not in self.dialogues:
            self.dialogues[agent] = self.tools.dialogue(agent, system, examples)
        return self.dialogues[agent]

    def forget(self, agent: str) -> None:
        """The agent is called as for the first time."""
        for known in (self.dialogues, self._shown, self._notes_given):
            known.pop(agent, None)

    async def next_page(self, query: str) -> Page:
        """The documents that follow those already seen for exactly this text, whichever call of the searcher saw
        them: an encoder may rank another spelling in another way."""
        state = self._queries.setdefault(query, QueryState(len(self._queries)))
        if state.ended:
            return Page(state.id, (), self._pages, state.shown, NO_MORE)
        if state.turns >= self.settings.max_same_query:
            return Page(state.id, (), self._pages, state.shown, USED_UP)
        k = self.settings.documents_per_turn
        passages = await self.tools.search("searcher", query, k, len(state.shown))
        state.turns += 1
        state.ended = len(passages) < k
        self._shown.setdefault("searcher", set()).update(p.id for p in passages)
        page = tuple((self._numbers.setdefault(p.id, len(self._numbers) + 1), p) for p in passages)
        state.shown += [number for number, _ in page]
        self._pages |= dict(page)
        number = len(self._places)
        for rank, passage in enumerate(passages):
            self._places.setdefault(passage.id, (number, -rank))
            if self.settings.documents == "found":
                self.add_document(passage)
        return Page(state.id, page, self._pages, state.shown, "" if passages else NO_MORE)

    def newest_last(self, documents: Sequence[Passage]) -> list[Passage]:
        """The documents page by page as they were found, of each page the best last."""
        return sorted(documents, key=lambda passage: self._places[passage.id])

    def unseen(self, agent: str) -> tuple[list[Passage], list[str]]:
        """Supporting documents and others' notes that this agent has not been given yet; from now on it has."""
        shown = self._shown.setdefault(agent, set())
        documents = [p for p in self.documents.values() if p.id not in shown]
        shown.update(p.id for p in documents)
        notes = [text for author, text in self.notes[self._notes_given.get(agent, 0) :] if author != agent]
        self._notes_given[agent] = len(self.notes)
        return documents, notes
