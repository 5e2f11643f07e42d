"""FLARE: a sentence that the model is unsure of is searched for and written again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import ModelConfig
from ratchet.core.records import Passage, Trajectory
from ratchet.inference.local.engine import LocalEngine
from ratchet.inference.scripted import Reply, ScriptedEngine, ScriptedReply
from ratchet.training.rows import build_rows, check_rows
from tests.helpers.playing import QUESTION, SETTING, Shelf, engine, play
from tests.helpers.snapshots import check_snapshot

HARBOUR = Passage(id="c1", document_id="d1", title="Harbour of Velm", text="The harbour has a mole.")
TORRIN = Passage(id="c2", document_id="d2", title="Ada Torrin", text="Ada Torrin was an engineer.")
WORLD = {QUESTION.text: [HARBOUR], "The mole is by .": [TORRIN]}
SURE = ScriptedReply(("The harbour has a mole.", 0.8), (" And", 0.01))
UNSURE = ScriptedReply((" The mole is by", 0.7), (" Bo Kell", 0.39), (".", 0.9), (" He", 0.9))
AGAIN = ScriptedReply((" The mole is by Ada Torrin.", 0.1), (" She", 0.9))
LAST = ScriptedReply((" So the answer is: Ada Torrin.", 0.9), end=0.1)


async def flare(
    replies: Sequence[Reply], shelf: Shelf | None = None, **settings: Any
) -> tuple[Trajectory, ScriptedEngine]:
    agent = engine([*replies])
    return await play({"name": "flare", "settings": settings}, agent, shelf or Shelf(WORLD)), agent


def queries(trajectory: Trajectory) -> list[str]:
    return [search.query for search in trajectory.searches]


async def test_only_the_unsure_sentence_is_searched_for_and_written_again() -> None:
    trajectory, agent = await flare([SURE, UNSURE, AGAIN, LAST])
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
    assert queries(trajectory) == [QUESTION.text, "The mole is by ."]
    assert all(call.params.logprobs and call.params.max_tokens == 64 for call in agent.calls)
    assert [p.id for p in trajectory.passages] == ["c2"]
    assert not [event for event in trajectory.events if event.kind == "note"]
    rows, left_out = build_rows([trajectory], ["k1"], 10_000)
    assert check_rows(rows, {"k1": trajectory}) == 3
    assert [(one.conversation, one.reason) for one in left_out] == [(1, "no parsed action")], "it was discarded"
    check_snapshot("flare", agent)


@pytest.mark.parametrize(
    ("pieces", "query"),
    [
        ((("It is Ada", 1.0), (" Torrin.", 0.8)), None),
        ((("It is Ada", 1.0), (" Torrin.", 0.79)), "It is Ada Torrin."),
        ((("It is Ada", 1.0), (" Torrin", 0.4), (".", 0.6)), "It is Ada Torrin."),
        ((("It is Ada", 1.0), (" Torrin", 0.39), (".", 0.6)), "It is Ada ."),
        ((("It is", 0.6), (" Tor", 0.1), ("rin", 0.5), (" not Bo.", 0.1)), "It is rin"),
        ((("Ka", 0.6), ("he", 0.1), ("ll", 0.6)), "Ka ll"),
        ((("It is Ada", 0.1), (".", 1.0)), QUESTION.text),
        ((("It is Ada.", 0.1), (" Bo", 1.0)), QUESTION.text),
    ],
)
async def test_the_query_is_the_sentence_less_its_unlikely_tokens_and_a_sure_one_needs_none(
    pieces: tuple[tuple[str, float], ...], query: str | None
) -> None:
    trajectory, _ = await flare([ScriptedReply(*pieces), "So the answer is: Ada."])
    assert queries(trajectory) == [QUESTION.text, *([query] if query else [])]


async def test_a_letter_that_lost_some_of_its_bytes_is_no_part_of_the_query() -> None:
    agent = engine([])
    euro = agent.format.encode("€")
    assert len(euro) == 3

    class Bytes(ScriptedEngine):
        async def generate(self, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
            said = await super().generate(prompt, params, *args, **kwargs)
            if len(self.calls) > 1:
                return said
            ids = (*agent.format.encode("It cost 5 "), *euro, agent.format.end_of_turn)
            logprobs = tuple(-3.0 if i == euro[1] else 0.0 for i in ids)
            return type(said)(ids, "It cost 5 €", "stop", 1, logprobs=logprobs)

    trajectory = await play({"name": "flare"}, Bytes(agent.format, ["", "So the answer is: 5."]), Shelf({}))
    assert queries(trajectory)[1] == "It cost 5"


async def test_ending_the_turn_is_no_word_to_be_unsure_of() -> None:
    trajectory, _ = await flare([ScriptedReply(("It is Ada.", 0.9), end=0.001)])
    assert (trajectory.answer, len(trajectory.model_calls), len(trajectory.searches)) == ("It is Ada.", 1, 1)
    empty, _ = await flare([ScriptedReply(end=0.001)])
    assert (empty.status, empty.answer, len(empty.model_calls)) == ("finished", "", 1)


async def test_the_text_holds_no_more_than_max_tokens() -> None:
    trajectory, agent = await flare(["abcdefghij"] * 3, look_ahead=4, max_tokens=10)
    assert [call.params.max_tokens for call in agent.calls] == [4, 4, 2]
    assert (trajectory.answer, trajectory.events[-1].kind) == ("abcdabcdab", "note")


async def test_flashrags_way_is_a_matter_of_settings() -> None:
    way: dict[str, Any] = {"retrieve_first": False, "carry_documents": False, "theta": 0.2, "beta": 0.2}
    doubt = ScriptedReply(("The mole is by", 0.3), (" Bo", 0.1), (".", 0.3), (" X", 1.0))
    trajectory, agent = await flare([doubt, AGAIN, LAST], **way)
    assert queries(trajectory) == ["The mole is by ."]
    assert [TORRIN.text in str(call.messages) for call in agent.calls] == [False, True, False]
    assert [p.id for p in trajectory.passages] == ["c2"]
    many, _ = await flare([doubt] * 10, iterations=5, **way)
    assert (len(many.model_calls), len(many.searches)) == (10, 5)


@pytest.mark.model
def test_the_real_model_is_sure_of_one_thing_and_unsure_of_another(smollm2: Path) -> None:
    """In this process, with its own probabilities: a theta of 0 keeps every sentence, one of 1 none."""
    local = LocalEngine(ModelConfig(path=str(smollm2), max_context=1000, cache_gb=0.1))

    async def one(theta: float) -> Trajectory:
        config = {"name": "flare", "settings": {"iterations": 2, "look_ahead": 8, "theta": theta}}
        return await play(config, {"agent": local}, Shelf(WORLD), replace(SETTING, adapter=None))

    async def both() -> list[Trajectory]:
        played = [await one(0.0), await one(1.0)]
        await local.close()
        return played

    easy, strict = asyncio.run(both())
    assert easy.status == strict.status == "finished"
    assert len(easy.searches) == 1 and len(easy.model_calls) <= 2
    assert len(strict.searches) == 1 + len(strict.model_calls) // 2 and len(strict.model_calls) in (2, 4)
    assert all(search.query.strip() for search in strict.searches)
