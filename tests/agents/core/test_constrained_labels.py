"""system.labels: constrain: an answer that comes to no label is asked for once more, under a grammar of the labels."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ratchet.agents.core.system import load_system
from ratchet.core.config import SystemConfig
from ratchet.core.records import content_key
from ratchet.inference.completion import Message, SamplingParams
from ratchet.inference.engine import EngineError
from tests.helpers.playing import CLAIM, QUESTION, Shelf, engine, passage, play

NAMES = ["SUPPORTS", "REFUTES", "NOT ENOUGH INFO"]
LABEL = json.dumps({"label": "REFUTES"})
COT: dict[str, Any] = {"name": "cot", "labels": "constrain"}


async def test_a_text_without_a_label_is_followed_by_one_under_a_grammar() -> None:
    agent = engine(["I cannot say which one it is.", LABEL])
    trajectory = await play(COT, agent, question=CLAIM)
    assert (trajectory.status, trajectory.answer, trajectory.error) == ("finished", "REFUTES", "")
    assert [call.parse for call in trajectory.model_calls] == ["malformed", "ok"]
    assert len(trajectory.conversations) == 1, "it is asked in the same dialogue"
    free, constrained = [call.params.schema for call in agent.calls]
    assert free is None and isinstance(constrained, dict) and constrained["properties"]["label"]["enum"] == NAMES
    assert "SUPPORTS" in agent.calls[1].messages[-1]["content"]


async def test_an_answer_in_form_is_taken_as_it_is() -> None:
    agent = engine(["She did.\nSUPPORTS"])
    assert (await play(COT, agent, question=CLAIM)).answer == "SUPPORTS" and len(agent.calls) == 1


async def test_it_is_off_by_default_and_then_changes_no_key() -> None:
    trajectory = await play({"name": "cot"}, engine(["I cannot say."]), question=CLAIM)
    assert (trajectory.status, trajectory.answer) == ("unparsed", "")
    assert "labels" not in SystemConfig(name="cot").model_dump(mode="json")
    plain, constrained = (load_system(SystemConfig.model_validate(one)) for one in ({"name": "cot"}, COT))
    assert "label.user" not in plain.prompts and "label.user" in constrained.prompts
    assert content_key(plain.identity) != content_key(constrained.identity)


@pytest.mark.parametrize("name", ["direct", "react", "mad_liang", "madke", "tool_mad", "mermaid", "fire"])
async def test_every_system_that_gives_verdicts_comes_to_a_label(name: str) -> None:
    def reply(prompt: str, params: SamplingParams, messages: Sequence[Message]) -> str:
        return (
            LABEL
            if isinstance(params.schema, dict) and "label" in params.schema.get("properties", {})
            else "Who knows?"
        )

    config = {"name": name, "malformed": "give_up"}
    assert (await play(config, engine(reply), question=CLAIM)).answer == ""
    trajectory = await play({**config, "labels": "constrain"}, engine(reply), question=CLAIM)
    assert (trajectory.status, trajectory.answer) == ("finished", "REFUTES")


async def test_a_question_without_labels_is_answered_as_before() -> None:
    agent = engine([""])
    trajectory = await play({"name": "no_retrieval", "labels": "constrain"}, agent, question=QUESTION)
    assert (trajectory.answer, len(agent.calls)) == ("", 1)


async def test_a_full_context_has_no_room_for_a_label() -> None:
    agent = engine(["word " * 400, LABEL], max_context=600)
    trajectory = await play(COT, agent, question=CLAIM)
    assert (trajectory.status, trajectory.answer) == ("out_of_budget", "")


@pytest.mark.parametrize(("replies", "ended"), [(True, ("finished", "REFUTES")), (False, ("failed", ""))])
async def test_the_label_waits_for_the_reply_of_a_branch_beside_the_one_that_failed(
    replies: bool, ended: tuple[str, str]
) -> None:
    """What one debater found does not fit its context, while the other, who was asked last, still answers."""

    def reply(_: str, params: SamplingParams, messages: Sequence[Message]) -> str:
        if isinstance(params.schema, dict):
            return LABEL
        if "Write one query" in messages[0]["content"]:
            return "[long]" if "a collection of documents" in messages[0]["content"] else "[short]"
        if replies:
            return "I see.\nSUPPORTS"
        raise EngineError("the server is gone")

    agent = engine(reply, max_context=900)
    agent.delay = 0.01
    shelf = Shelf({"long": [passage(1, "word " * 2000)], "short": [passage(2)]})
    config = {"name": "tool_mad", "labels": "constrain", "settings": {"stability": False}}
    trajectory = await play(config, agent, shelf, question=CLAIM)
    assert (trajectory.status, trajectory.answer) == ended
