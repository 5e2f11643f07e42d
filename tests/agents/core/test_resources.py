"""What a system reaches beside models and the index: sources by name, tools, the memory of its scope."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.core.context import RunContext
from agents.core.resources import Resources
from agents.core.system import System, run_episode
from agents.core.tools import Answer, Tools
from ratchet.config import RoleConfig, Section, SystemConfig
from ratchet.errors import UserError
from ratchet.records import Passage, Question, Trajectory
from retrieval.sources.source import SourceError
from tests.helpers.playing import CLAIM, QUESTION, SETTING, Shelf, ShelfSource, alike, engine, passage, play
from tests.helpers.remembering import opened

SHELF = Shelf({"harbour": [passage(1), passage(2)]})


class Down(ShelfSource):
    async def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        raise SourceError("tavily: answered 503, five times")


async def solved(
    solve: Any, resources: Resources, setting: RunContext = SETTING, question: Question = QUESTION
) -> Trajectory:
    async def run(question: Question, tools: Tools, settings: Section) -> Answer:
        return await solve(tools)

    system = System("test", SystemConfig(), Section(), ("one",), run)
    engines = {"agent": engine([])}
    return await run_episode(
        question, system, engines, Shelf({}), setting, key="k", sample=0, seed=1, resources=resources
    )


async def test_a_source_is_searched_by_its_name_and_recorded() -> None:
    async def solve(tools: Tools) -> Answer:
        found = await tools.search("one", "harbour", 1, source="web")
        return Answer("", tuple(found))

    done = await solved(solve, Resources({"web": ShelfSource("web", SHELF)}))
    assert [(s.source, s.query, [p.id for p in s.passages]) for s in done.searches] == [("web", "harbour", ["c1"])]


async def test_a_source_that_the_config_has_not_is_the_users_to_mend() -> None:
    async def solve(tools: Tools) -> Answer:
        return Answer("", tuple(await tools.search("one", "harbour", 1, source="wab")))

    with pytest.raises(UserError, match=r"'wab', which the config has not.*did you mean 'web'"):
        await solved(solve, Resources({"web": ShelfSource("web", SHELF)}))


async def test_a_service_that_is_down_fails_the_trajectory_which_is_then_done_again() -> None:
    async def solve(tools: Tools) -> Answer:
        return Answer("", tuple(await tools.search("one", "harbour", 1, source="web")))

    done = await solved(solve, Resources({"web": Down("web", SHELF)}))
    assert (done.status, done.error) == ("failed", "tavily: answered 503, five times")


async def test_tools_are_offered_and_called_and_what_they_refuse_is_told() -> None:
    async def solve(tools: Tools) -> Answer:
        assert list(await tools.tool_specs(["web"])) == ["web"]
        found = await tools.call("one", "web", {"query": "harbour"}, 2, ["web"])
        wrong = await tools.call("one", "web", {"q": "harbour"}, 2, ["web"])
        absent = await tools.call("one", "news", {"query": "harbour"}, 2, ["web"])
        return Answer(" | ".join((wrong.error, absent.error)), found.passages)

    done = await solved(solve, Resources({"web": ShelfSource("web", SHELF), "news": ShelfSource("news", SHELF)}))
    assert [p.id for p in done.passages] == ["c1", "c2"]
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
    ("labels", "said"),
    [
        (CLAIM.labels, ("SUPPORTS", "REFUTES")),
        (CLAIM.labels[::-1], ("SUPPORTS", "REFUTES")),
        (tuple(label.model_copy(update={"stance": ""}) for label in CLAIM.labels), ("SUPPORTS", "REFUTES")),
    ],
)
async def test_labels_in_the_configs_examples_are_the_tasks(labels: Any, said: tuple[str, str]) -> None:
    role = RoleConfig(examples=(("Claim: Fish swim.", "They do.\n<true>"), ("Claim: Fish fly.", "No.\n<false>")))
    agent = engine(["Ada did.\nSUPPORTS"])
    question = CLAIM.model_copy(update={"labels": labels})
    await play(
        SystemConfig(name="cot", roles={"default": role}), agent, question=question, resources=Resources(embed=alike)
    )
    assert [m["content"] for m in agent.calls[0].messages if m["role"] == "assistant"] == [
        f"They do.\n{said[0]}",
        f"No.\n{said[1]}",
    ]
