"""Systems whose actions are calls of tools in the model's own form."""

from typing import Any

import pytest

from ratchet.agents.mermaid.actions import offered_tools
from ratchet.agents.react import CALL, ONE_CALL
from ratchet.core.errors import UserError
from ratchet.core.records import Trajectory
from ratchet.inference.completion import FunctionCall
from ratchet.inference.scripted import ScriptedEngine
from ratchet.inference.thoughts import without_thoughts
from ratchet.retrieval.sources.source import ToolSpec
from tests.agents.test_mermaid import PARTS
from tests.helpers.playing import CLAIM, Shelf, engine, passage, play
from tests.helpers.templates import templated_format
from tests.inference.test_tool_calls import own_words

HARBOUR = "The harbour is old. It was built by Ada Torrin. Ships lie there. Ada also built a bridge."
SHELF = {"harbour of Velm": [passage(1, HARBOUR, "Velm"), passage(2), passage(3), passage(4)]}


async def react(name: str, said: list[str]) -> tuple[Trajectory, list[str]]:
    """The trajectory, and the text of each conversation."""
    agent = ScriptedEngine(templated_format(name), said)
    config = {"name": "react", "settings": {"actions": "native"}}
    trajectory = await play(config, agent, Shelf(SHELF), question=CLAIM)
    return trajectory, [agent.format.decode(conversation.ids) for conversation in trajectory.conversations]


def call(name: str, tool: str, **arguments: Any) -> str:
    return own_words(name, FunctionCall.of(tool, arguments))


@pytest.mark.parametrize(
    "name", ["qwen2_5", "llama3_2", "qwen3_5_nothink", "glm4moe", "gptoss", "gemma4_v5", "lfm2_2_5"]
)
async def test_react_acts_by_calls_whose_results_the_template_shows(name: str) -> None:
    said = [
        call(name, "search", query="harbour of Velm"),
        call(name, "lookup", word="ada"),
        call(name, "finish", label="SUPPORTS"),
    ]
    trajectory, texts = await react(name, said)
    assert (trajectory.status, trajectory.answer, trajectory.stopped) == ("finished", "SUPPORTS", "finished in step 3")
    assert [(turn.query, turn.passages, turn.verdict) for turn in trajectory.turns] == [
        ("harbour of Velm", ("c1", "c2", "c3"), ""),
        ("ada", (), ""),
        ("", (), "SUPPORTS"),
    ]
    assert [one.parse for one in trajectory.model_calls] == ["ok"] * 3
    assert HARBOUR in texts[-1] and "(sentence 1 of 2) It was built by Ada Torrin." in texts[-1]
    assert "Action:" not in texts[-1] and "lookup" in texts[0]


async def test_a_turn_without_one_call_that_can_be_carried_out_is_malformed_and_is_told_so() -> None:
    name = "qwen2_5"
    finish = call(name, "finish", label="SUPPORTS")
    said = [
        "It is true.",
        call(name, "search", query="harbour of Velm")[:-20],
        call(name, "open", page="1"),
        call(name, "finish", label="perhaps"),
        call(name, "search", query="harbour of Velm") + finish,
        f"Ada built it.\n{finish}",
    ]
    trajectory, [text] = await react(name, said)
    assert (trajectory.answer, trajectory.explanation) == ("SUPPORTS", "Ada built it.")
    assert [one.parse for one in trajectory.model_calls] == ["malformed"] * 5 + ["ok"]
    assert text.count(CALL) == 3 and "takes one of the labels" in text and ONE_CALL in text
    assert len(trajectory.searches) == 1


@pytest.mark.parametrize("name", ["qwen3", "glm4moe"])
async def test_mermaids_executor_calls_tools_and_gives_its_verdict_by_one(name: str) -> None:
    parts = PARTS
    search = "I need more." + call(name, "search", query="harbour of Velm").lstrip()
    ends = call(name, "verdict", label="SUPPORTS")
    if name == "qwen3":  # which begins its thoughts itself
        parts, search, ends = (f"<think>\n\n</think>\n\n{without_thoughts(said)}" for said in (parts, search, ends))
    agent = ScriptedEngine(templated_format(name), [parts, search, ends])
    config = {"name": "mermaid", "malformed": "give_up", "settings": {"actions": "native", "memory": "off"}}
    done = await play(config, agent, Shelf(SHELF), question=CLAIM)
    assert (done.status, done.answer, done.stopped) == ("finished", "SUPPORTS", "verdict at step 2")
    assert [turn.query for turn in done.turns] == ['search {"query": "harbour of Velm"}', ""]
    assert [one.parse for one in done.model_calls] == ["ok"] * 3
    wrong = call(name, "verdict", label="PERHAPS"), call(name, "search", q="x"), "It is true."
    for said in wrong:
        agent = ScriptedEngine(templated_format(name), [parts, said])
        assert (await play(config, agent, Shelf(SHELF), question=CLAIM)).status == "unparsed"


def test_a_tool_that_has_the_name_of_the_verdict_is_refused() -> None:
    with pytest.raises(UserError, match="'verdict', as the one that ends"):
        offered_tools({"verdict": ToolSpec("verdict", "", {})}, CLAIM.labels)


async def test_a_model_whose_template_takes_no_tools_is_refused() -> None:
    with pytest.raises(UserError, match=r"models\.agent.*actions: text"):
        await play({"name": "react", "settings": {"actions": "native"}}, engine([]), Shelf(SHELF), question=CLAIM)
