"""MERMAID: decompose, recall, execute step by step, give a verdict, remember."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.agents.core.resources import Resources
from ratchet.core.config import EmbedderConfig
from ratchet.core.records import Note, Passage, Question, Recall, Trajectory
from ratchet.inference.scripted import ScriptedEngine
from ratchet.retrieval.encoders.dense import LocalEmbedder
from ratchet.retrieval.encoders.limits import Embed
from ratchet.retrieval.retriever import SourceError
from ratchet.sampling.play import EverySource
from tests.helpers.playing import CLAIM, Shelf, alike, engine, passage, play, say
from tests.helpers.remembering import opened
from tests.helpers.snapshots import check_snapshot

PARTS = say(
    triplets=[
        {"subject": "Ada Torrin", "relation": "built", "object": "harbour of Velm", "attributions": ["as an engineer"]}
    ],
    keywords=["harbours"],
)
SHELF = {
    "harbour": [passage(1, "Ada Torrin built it.", "Velm"), passage(2)],
    "Torrin": [passage(1, "Ada Torrin built it.", "Velm"), passage(3)],
}
SECOND = CLAIM.model_copy(update={"id": "c2", "text": "The harbour of Velm is the work of Ada Torrin."})


def search(query: str) -> str:
    return say(thought=f"what of {query}?", action="search", arguments={"query": query})


def verdict(label: str = "SUPPORTS") -> str:
    return say(thought="Document 1 says so.", verdict=label)


async def check(
    agent: ScriptedEngine | list[str],
    shelf: Shelf | None = None,
    question: Question = CLAIM,
    resources: Resources | None = None,
    **given: Any,
) -> Trajectory:
    agent = engine(agent) if isinstance(agent, list) else agent
    config = {"name": "mermaid", "settings": given}
    return await play(config, agent, shelf or Shelf(SHELF), question=question, resources=resources)


def recalls(done: Trajectory) -> list[tuple[str, ...]]:
    return [event.entities for event in done.events if isinstance(event, Recall)]


async def test_the_retry_of_a_call_that_failed_is_no_repeat() -> None:
    class FailsOnce(Shelf):
        def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
            found = super().search(query, k, offset)
            if len(self.asked) == 1:
                raise SourceError("no search server answers")
            return found

    shelf = FailsOnce(SHELF)
    done = await check([PARTS, *[search("harbour")] * 3, verdict()], shelf, memory="off", repeats="refuse")
    assert len(shelf.asked) == 2 and [bool(call.error) for call in done.tool_calls] == [True, False]
    assert [turn.passages for turn in done.turns] == [(), ("c1", "c2"), (), ()] and done.answer == "SUPPORTS"


@pytest.mark.parametrize(("memory", "asked"), [("string", [("Ada Torrin", "Velm")]), ("off", [])])
async def test_without_the_decomposer_names_are_the_keys(memory: str, asked: list[Any], tmp_path: Path) -> None:
    agent = engine([search("harbour"), verdict()])
    done = await check(agent, resources=reach_in(tmp_path), decomposer=False, memory=memory)
    assert recalls(done) == asked
    assert agent.calls[0].messages[-1]["content"] == f"Claim: {CLAIM.text}" and len(done.model_calls) == 2


def reach_in(folder: Path, embed: Embed = alike) -> Resources:
    return Resources(EverySource(Shelf(SHELF)), opened(folder), embed)


@pytest.mark.parametrize("memory", ["string", "meaning"])
async def test_evidence_of_one_claim_saves_the_next_its_calls(tmp_path: Path, memory: str) -> None:
    first = await check([PARTS, search("harbour"), verdict()], resources=reach_in(tmp_path), memory=memory)
    agent = engine([PARTS, verdict()])
    compared: list[str] = []

    def embed(texts: Sequence[str]) -> np.ndarray:
        compared.extend(texts)
        return alike(texts)

    second = await check(agent, question=SECOND, resources=reach_in(tmp_path, embed), memory=memory)
    assert bool(compared) == (memory == "meaning")
    assert recalls(second) == [("Ada Torrin", "harbour of Velm")]
    assert (len(first.tool_calls), len(second.tool_calls)) == (1, 0)
    assert {p.id for p in second.passages} == {"c1", "c2"} and second.answer == "SUPPORTS"
    assert second.turns[0].speaker == "memory" and set(second.turns[0].passages) == {"c1", "c2"}
    if memory == "string":
        check_snapshot("mermaid_recalled", agent)


async def test_what_memory_and_embedder_do_not_take_is_noted(tmp_path: Path) -> None:
    class Short(LocalEmbedder):
        __call__ = staticmethod(alike)

        def end_of(self, text: str) -> tuple[str, int]:
            return text[-12:], 3

    resources = Resources(EverySource(Shelf(SHELF)), opened(tmp_path, characters=10), Short(EmbedderConfig(path="any")))
    done = await check([PARTS, search("harbour"), verdict()], resources=resources, memory="meaning")
    assert [event.text for event in done.events if isinstance(event, Note)] == [
        "the embedder left out 3 token(s) at the beginning of the text",
        "remembered 4 new piece(s) of evidence under Ada Torrin, harbour of Velm",
    ]


async def test_what_is_recalled_is_no_new_evidence_but_what_is_found_is(tmp_path: Path) -> None:
    await check([PARTS, search("harbour"), verdict()], resources=reach_in(tmp_path), memory="off")
    nothing = await check([PARTS, verdict()], question=SECOND, resources=reach_in(tmp_path))
    assert len(recalls(nothing)) == 1 and nothing.passages == (), "with memory off nothing was left"
    await check([PARTS, search("harbour"), verdict()], resources=reach_in(tmp_path))
    second = await check([PARTS, search("Torrin"), verdict()], question=SECOND, resources=reach_in(tmp_path))
    assert [p.id for p in second.passages][-1] == "c3" and len(second.passages) == 3
    third = CLAIM.model_copy(update={"id": "c3"})
    again = await check([PARTS, verdict()], question=third, resources=reach_in(tmp_path))
    assert {p.id for p in again.passages} == {"c1", "c2", "c3"}


async def test_entities_that_the_memory_tells_apart_are_all_kept(tmp_path: Path) -> None:
    facts = [{"subject": "WHO", "relation": "praised", "object": "Who", "attributions": []}]
    facts += [{"subject": "J. K. Orsk", "relation": "is", "object": "J.K. Orsk", "attributions": []}]
    parts = say(triplets=facts, keywords=["who"])
    assert recalls(await check([parts, verdict()], resources=reach_in(tmp_path))) == [("WHO", "Who", "J. K. Orsk")]


async def test_evidence_may_be_kept_under_triplets_and_keywords_as_well(tmp_path: Path) -> None:
    """A claim that shares no entity, only a topic, finds it then and not otherwise."""
    other = say(
        triplets=[{"subject": "Orra", "relation": "has", "object": "a pier", "attributions": []}], keywords=["Harbours"]
    )
    names = ("Ada Torrin", "harbour of Velm")
    facts = ("Ada Torrin built harbour of Velm", "harbours")
    for keys, entities, found in (("facts", names + facts, {"c1", "c2"}), ("entities", names, set[str]())):
        reach = reach_in(tmp_path / keys)
        first = await check([PARTS, search("harbour"), verdict()], resources=reach, memory_keys=keys)
        assert recalls(first) == [entities]
        claim = CLAIM.model_copy(update={"id": "c2", "text": "Orra has a pier."})
        second = await check([other, verdict()], question=claim, resources=reach, memory_keys=keys)
        assert {passage.id for passage in second.passages} == found
