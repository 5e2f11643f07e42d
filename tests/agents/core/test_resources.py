"""What a system reaches beside models and the index: sources by name, tools, the memory of its scope."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.agents.core.resources import Resources, open_resources
from ratchet.agents.core.task import RunContext
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Config, RoleConfig, SystemConfig, parse
from ratchet.core.errors import UserError
from ratchet.core.records import Note, Question, Search, ToolCall, Trajectory
from ratchet.inference.http.chat_api import TextFormat
from ratchet.inference.scripted import ScriptedEngine
from ratchet.retrieval.sources.source import ToolResult
from ratchet.sampling.play import RetrieverSource
from tests.helpers.playing import CLAIM, QUESTION, SETTING, Shelf, engine, passage, play, run
from tests.helpers.remembering import opened
from tests.helpers.tiny import tiny_format

SHELF = Shelf({"harbour": [passage(1), passage(2)]})


async def solved(
    solve: Any,
    resources: Resources,
    setting: RunContext = SETTING,
    question: Question = QUESTION,
    agent: ScriptedEngine | None = None,
    shelf: Shelf = SHELF,
) -> Trajectory:
    return await run(solve, agent or engine([]), None, shelf, setting, 1, resources=resources, question=question)


ABSTRACT = "The tide of Velm was measured. " * 80 + "So the harbour silts up."
"""2,504 characters. Of 280 of PubMedQA's 1,000 abstracts the conclusion stands behind the first 1,500."""


@pytest.mark.parametrize(
    ("max_context", "max_tokens", "whole"), [(128_000, None, True), (8_000, None, False), (128_000, 90, False)]
)
@pytest.mark.parametrize("closed", [False, True])
async def test_what_a_source_finds_is_cut_to_the_tokens_that_fit_and_noted(
    max_context: int, max_tokens: int | None, whole: bool, closed: bool
) -> None:
    """By default two passages share an eighth of the context. The model may have no tokenizer of ours."""
    shelf = Shelf({"tide": [passage(1, ABSTRACT), passage(2, "Short.")]})
    chat = TextFormat() if closed else tiny_format()

    async def solve(tools: Tools) -> Answer:
        await tools.search("one", "tide", 2, source="web")
        await tools.call("one", "web", {"query": "tide"}, 2, ["web"])
        return Answer("")

    reach = Resources({"web": RetrieverSource("web", shelf)}, max_tokens={"web": max_tokens} if max_tokens else {})
    done = await solved(solve, reach, agent=ScriptedEngine(chat, [], max_context))
    searched, called = (event for event in done.events if isinstance(event, Search | ToolCall))
    most = max_tokens or max_context // 8 // 2
    assert searched.passages == called.passages and searched.passages[1].text == "Short."
    text = searched.passages[0].text
    notes = [event.text for event in done.events if isinstance(event, Note)]
    if whole:
        assert (text, notes) == (ABSTRACT, [])
    else:
        assert notes == [f"web: 1 document(s) cut to {most} tokens (c1)"] * 2
        assert text.endswith("…") and ABSTRACT.startswith(text[:-1])
        assert most - 20 <= chat.count(chat.encode(text)) <= most + 3


async def test_a_tools_text_is_cut_like_a_passage_and_the_index_is_not_cut() -> None:
    class Notebook(RetrieverSource):
        async def call(self, tool: str, arguments: Mapping[str, Any], k: int) -> ToolResult:
            return ToolResult(text=ABSTRACT)

    async def solve(tools: Tools) -> Answer:
        found = await tools.call("one", "web", {}, 2, ["web"])
        return Answer(found.text, tuple(await tools.search("one", "tide", 1)))

    shelf = Shelf({"tide": [passage(1, ABSTRACT)]})
    reach = Resources({"web": Notebook("web", shelf)})
    done = await solved(solve, reach, agent=engine([], max_context=800), shelf=shelf)
    assert len(done.answer) < 400 and done.answer.endswith("…")
    assert done.searches[0].passages[0].text == ABSTRACT


def test_how_much_of_a_passage_is_read_is_part_of_what_a_run_samples_with(tmp_path: Path) -> None:
    def digest(**source: Any) -> str:
        config = {"sources": {"web": {"service": "arxiv", **source}}, "run": str(tmp_path)}
        return open_resources(parse(Config, config, "test"), SHELF).digest

    assert digest() != digest(max_tokens=100)


async def test_a_source_that_the_config_has_not_is_the_users_to_mend() -> None:
    async def solve(tools: Tools) -> Answer:
        return Answer("", tuple(await tools.search("one", "harbour", 1, source="wab")))

    with pytest.raises(UserError, match=r"'wab', which the config has not.*did you mean 'web'"):
        await solved(solve, Resources({"web": RetrieverSource("web", SHELF)}))


async def test_tools_are_offered_and_called_and_what_they_refuse_is_told() -> None:
    async def solve(tools: Tools) -> Answer:
        assert list(await tools.tool_specs(["web"])) == ["web"]
        found = await tools.call("one", "web", {"query": "harbour"}, 2, ["web"])
        wrong = await tools.call("one", "web", {"q": "harbour"}, 2, ["web"])
        absent = await tools.call("one", "news", {"query": "harbour"}, 2, ["web"])
        return Answer(" | ".join((wrong.error, absent.error)), found.passages)

    done = await solved(
        solve, Resources({"web": RetrieverSource("web", SHELF), "news": RetrieverSource("news", SHELF)})
    )
    assert [p.id for p in done.tool_calls[0].passages] == ["c1", "c2"]
    assert 'takes one argument, "query"' in done.answer and "no tool 'news'" in done.answer
    assert [bool(call.error) for call in done.tool_calls if call.kind == "tool"] == [False, True, True]


async def test_evidence_stays_in_the_scope_that_left_it(tmp_path: Path) -> None:
    resources = Resources(memory=opened(tmp_path))

    async def leave(tools: Tools) -> Answer:
        await tools.remember("one", ["Velm"], [passage(1)], "a claim")
        return Answer("")

    async def recall(tools: Tools) -> Answer:
        found = await tools.recall("one", ["velm"], "another claim")
        return Answer("", tuple(piece.passage for piece in found))

    train, test = replace(SETTING, scope="train"), replace(SETTING, scope="test/base/base")
    await solved(leave, resources, train)
    assert not (await solved(recall, resources, test, CLAIM)).passages
    assert not (await solved(recall, resources, train)).passages, "its own question gets nothing back"
    assert [p.id for p in (await solved(recall, resources, train, CLAIM)).passages] == ["c1"]


@pytest.mark.parametrize(
    "labels",
    [CLAIM.labels, CLAIM.labels[::-1], tuple(label.model_copy(update={"stance": ""}) for label in CLAIM.labels)],
)
async def test_labels_in_the_configs_examples_are_the_tasks(labels: Any) -> None:
    role = RoleConfig(examples=(("Claim: Fish swim.", "They do.\n<true>"), ("Claim: Fish fly.", "No.\n<false>")))
    agent = engine(["Ada did.\nSUPPORTS"])
    question = CLAIM.model_copy(update={"labels": labels})
    await play(SystemConfig(name="cot", roles={"default": role}), agent, question=question)
    said = [m["content"] for m in agent.calls[0].messages if m["role"] == "assistant"]
    assert said == ["They do.\nSUPPORTS", "No.\nREFUTES"]
