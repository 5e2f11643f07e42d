"""A passage is its id and its text: what a judge, a record or the memory has under an id is what a model was shown."""

import asyncio
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.agents.core.resources import Resources
from ratchet.core.records import Passage, Recall, Search, ToolCall, Trajectory
from ratchet.inference.scripted import Replies
from ratchet.sampling.play import RetrieverSource
from tests.agents.test_budgets import CALLS, PARTS, SUPPORTED, debaters
from tests.helpers.playing import CLAIM, Shelf, alike, engine, play
from tests.helpers.remembering import opened

WORDS = [f"word{n}" for n in range(40)]


def shelf_of(lengths: Iterable[int]) -> Shelf:
    """Finds the same documents, of so many words, whatever is asked."""
    texts = [" ".join([f"start{number}", *WORDS[:length]]) for number, length in enumerate(lengths)]
    found = [Passage(id=f"c{n}", document_id=f"d{n}", text=text) for n, text in enumerate(texts)]

    class Any_(Shelf):
        def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
            return found[offset : offset + k]

    return Any_({})


def recorded(played: Trajectory) -> list[Passage]:
    """All passages of the record."""
    looked_up = (e for e in played.events if isinstance(e, Search | ToolCall | Recall))
    return [*played.passages, *(passage for event in looked_up for passage in event.passages)]


def shown(agent: Any) -> set[str]:
    """The texts of documents in prompts: behind a number, one a line."""
    said = (str(m["content"]) for call in agent.calls for m in call.messages if m["role"] == "user")
    return {text for message in said for text in re.findall(r"^\[\d+\] (start.*)$", message, re.MULTILINE)}


def check(played: Trajectory, agent: Any, others: Iterable[Passage] = ()) -> None:
    texts: dict[str, set[str]] = {}
    for passage in [*recorded(played), *others]:
        texts.setdefault(passage.id, set()).add(passage.text)
        assert passage.text.rstrip() in shown(agent)
    assert all(len(of_one_id) == 1 for of_one_id in texts.values())
    turns = {id for turn in played.turns for id in turn.passages}
    assert turns <= set(texts), "a turn's ids are those of the record"


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(12, 60), st.integers(12, 60))
def test_what_the_judge_of_tool_mad_reads_is_what_the_agents_read(lengths: list[int], one: int, other: int) -> None:
    agent, shelf = engine(debaters("SUPPORTS", "REFUTES")), shelf_of(lengths)
    sources = {"search": RetrieverSource("search", shelf), "cut": RetrieverSource("cut", shelf)}
    resources = Resources(sources, embed=alike, max_tokens={"search": one, "cut": other})
    config = {"name": "tool_mad", "settings": {"sources": {"rag": "cut"}}}
    played = asyncio.run(play(config, agent, shelf, question=CLAIM, resources=resources))
    check(played, agent)
    [ruling] = [c.messages[-1]["content"] for c in agent.calls if "You judge" in str(c.messages[0]["content"])]
    documents = re.findall(r"^\[\d+\] (start.*)$", str(ruling), re.MULTILINE)
    assert sorted(documents) == sorted(p.text for p in played.passages)
    for numbers, turn in zip(re.findall(r"Found: (.*)", str(ruling)), played.turns, strict=True):
        read = [documents[int(number) - 1] for number in re.findall(r"\d+", numbers)]
        assert read == [next(p.text for p in played.passages if p.id == id) for id in turn.passages]


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(12, 60), st.integers(12, 60), st.integers(10, 300)
)
def test_what_mermaid_shows_again_remembers_and_recalls_is_what_was_shown(
    lengths: list[int], one: int, other: int, characters: int
) -> None:
    shelf = shelf_of(lengths)
    also = CALLS[1].replace('"search"', '"cut"')
    replies = [PARTS, CALLS[0], also, SUPPORTED]
    with tempfile.TemporaryDirectory() as folder:
        memory = opened(Path(folder), characters=characters)
        sources = {"search": RetrieverSource("search", shelf), "cut": RetrieverSource("cut", shelf)}
        resources = Resources(sources, memory, alike, max_tokens={"search": one, "cut": other})
        config = {"name": "mermaid", "settings": {"tools": ["search", "cut"]}}
        for number in range(2):
            agent, question = engine(list(replies)), CLAIM.model_copy(update={"id": f"c{number}"})
            played = asyncio.run(play(config, agent, shelf, question=question, resources=resources))
            pieces = memory.pieces()
            [scope] = pieces.scopes
            kept = [r.passage for p in pieces.under(scope, "ada") for r in p.records() if r.question_id == question.id]
            check(played, agent, kept)
        memory.close()


@pytest.mark.parametrize("name", ["mermaid", "tool_mad"])
async def test_one_id_that_a_service_gives_two_texts_is_two_passages(name: str, tmp_path: Path) -> None:
    class Changing(RetrieverSource):
        asked = 0

        async def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
            self.asked += 1
            return [Passage(id="page", document_id="page", text=f"start{self.asked}")]

    replies: Replies = [PARTS, *CALLS[:2], SUPPORTED] if name == "mermaid" else debaters("SUPPORTS", "REFUTES")
    agent, source = engine(replies), Changing("search", Shelf({}))
    resources = Resources({"search": source}, opened(tmp_path), alike)
    played = await play({"name": name}, agent, Shelf({}), question=CLAIM, resources=resources)
    assert [p.text for p in played.passages] == [f"start{n + 1}" for n in range(source.asked)]
    assert shown(agent) == {p.text for p in played.passages}
