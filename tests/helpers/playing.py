"""What the tests of agents share: a small world, a retriever over it, and one line to play an episode."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ratchet.agents.core.resources import Resources
from ratchet.agents.core.system import System, SystemSpec, load_system
from ratchet.agents.core.task import Job, RunContext
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section, SystemConfig
from ratchet.core.records import Event, Passage, Question, Trajectory
from ratchet.inference.completion import Completion, Message, SamplingParams
from ratchet.inference.engine import Engine
from ratchet.inference.scripted import Replies, ScriptedEngine
from ratchet.questions.labels import FEVER
from ratchet.retrieval.retriever import SourceError
from ratchet.retrieval.sources.source import SearchSource
from ratchet.sampling.play import resources_over
from ratchet.sampling.pool import run_episode
from tests.helpers.tiny import Style, tiny_format

SETTING = RunContext(temperature=0.7, frozen_temperature=0.1, top_p=0.95, adapter="adapters/one", policy="p1")
QUESTION = Question(id="q1", text="Who built the harbour of Velm?", answers=("Ada Torrin",))
CLAIM = Question(id="c1", text="Ada Torrin built the harbour of Velm.", form="claim", labels=FEVER, label="SUPPORTS")


def passage(number: int, text: str = "", title: str = "") -> Passage:
    return Passage(id=f"c{number}", document_id=f"d{number}", text=text or f"fact {number}", title=title, score=1.0)


class Shelf:
    """A retriever that knows, for each query, which passages come in which order."""

    digest = "shelf"

    def __init__(self, ranked: Mapping[str, list[Passage]]) -> None:
        self.ranked = ranked
        self.asked: list[tuple[str, int, int]] = []

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        self.asked.append((query, k, offset))
        return self.ranked.get(query, [])[offset : offset + k]


def engine(replies: Replies, style: Style = "chatml", max_context: int = 32_000) -> ScriptedEngine:
    return ScriptedEngine(tiny_format(style), replies, max_context)


class Unpunctual(ScriptedEngine):
    """A server whose answers come in an order of its own."""

    def __init__(self, replies: Replies, late: bool) -> None:
        super().__init__(tiny_format(), replies)
        self.late = late

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Completion:
        wait = params.seed % 5
        await asyncio.sleep((wait if self.late else 4 - wait) / 1000)
        return await super().generate(prompt, params, adapter, messages)


async def play(
    config: SystemConfig | dict[str, Any],
    agent: ScriptedEngine | Mapping[str, Engine],
    shelf: Shelf | None = None,
    setting: RunContext = SETTING,
    seed: int = 7,
    question: Question = QUESTION,
    watch: Callable[[Event], None] | None = None,
    resources: Resources | None = None,
) -> Trajectory:
    system = load_system(config if isinstance(config, SystemConfig) else SystemConfig.model_validate(config))
    engines: Mapping[str, Engine] = {"agent": agent} if isinstance(agent, ScriptedEngine) else agent
    shelf = shelf or Shelf({})
    with resources_over(shelf, alike) as everywhere:
        job = Job(question, sample=3, key="k1", seed=seed)
        return await run_episode(job, system, engines, shelf, setting, resources or everywhere, watch)


class DownSource(SearchSource):
    """A search service that is out of order."""

    digest = "down"

    def __init__(self, name: str) -> None:
        self.name, self.about = name, f"searches {name}"

    async def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        raise SourceError(f"{self.name} answered 503: nothing (after 5 tries); run the same command again later")


def alike(texts: Sequence[str]) -> np.ndarray:
    """An embedder to which all texts mean the same."""
    return np.ones((len(texts), 1), np.float32)


def apart(texts: Sequence[str]) -> np.ndarray:
    """An embedder to which only equal texts are alike."""
    seen = sorted(set(texts))
    return np.eye(len(seen), dtype=np.float32)[[seen.index(text) for text in texts]]


Solve = Callable[[Tools], Awaitable[Answer]]


def system_of(
    solve: Callable[[Question, Tools, Section], Awaitable[Answer]],
    *roles: str,
    name: str = "test",
    config: SystemConfig | None = None,
) -> System:
    """A system made for one test: `solve` and these roles."""
    return System(name, config or SystemConfig(), Section(), SystemSpec(Section, solve, roles), roles)


async def run(
    solve: Solve,
    agent: ScriptedEngine | dict[str, ScriptedEngine],
    config: SystemConfig | None = None,
    shelf: Shelf | None = None,
    setting: RunContext = SETTING,
    seed: int = 7,
    watch: Callable[[Event], None] | None = None,
    resources: Resources | None = None,
    question: Question = QUESTION,
) -> Trajectory:
    """An episode of a system made for one test: `solve` alone, with the roles "one" and "two"."""

    async def run_solve(question: Question, tools: Tools, settings: Section) -> Answer:
        return await solve(tools)

    system = system_of(run_solve, "one", "two", config=config)
    engines = {"agent": agent} if isinstance(agent, ScriptedEngine) else agent
    job = Job(question, sample=0, key="k", seed=seed)
    return await run_episode(job, system, engines, shelf or Shelf({}), setting, resources, watch)


def say(**fields: Any) -> str:
    return json.dumps(fields)


def act(agent: str, **fields: Any) -> str:
    """A coordinator's turn in the paper's style, with plausible inputs."""
    inputs: dict[str, dict[str, Any]] = {
        "planner": {"question": QUESTION.text, "information": ""},
        "searcher": {"question": QUESTION.text, "information": "", "suggestions": ["the harbour"]},
        "reasoner": {"question": QUESTION.text, "information": "so far", "aspect": "the builder"},
        "summarizer": {"question": QUESTION.text, "information": "so far"},
        "validator": {"question": QUESTION.text, "information": "so far", "response": "Ada"},
        "answerer": {"question": QUESTION.text, "guidance": "be short", "important_information": "the builder"},
        "reviser": {"question": QUESTION.text, "suggestion": "full name"},
        "finisher": {"finished": True},
    }
    return say(agent=agent, input={**inputs[agent], **fields}, reason="it is time")


def query(text: str) -> str:
    return say(search_query=text, search_query_explanation="it fits")


def review(relevant: dict[int, bool], end: bool, new: str = "", query_id: int = 0) -> str:
    return say(
        query_id=query_id,
        relevance=[{"doc_id": n, "is_relevant": yes, "is_relevant_explanation": "so"} for n, yes in relevant.items()],
        change_search_query=bool(new),
        change_search_query_explanation="so",
        new_search_query=new,
        end_search=end,
        end_search_explanation="so",
    )
