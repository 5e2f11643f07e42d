"""Calls that a program makes beside its work: recorded like the others, and chosen from when rows are made."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.core.config import TrainingConfig
from ratchet.core.files import write_json, write_jsonl
from ratchet.core.records import QuestionChoice, Selection, Trajectory
from ratchet.report.records import count_rows
from ratchet.training.rows import SIDE_CALL, build_rows, prepare_rows
from tests.helpers.gateway import record, say, system, user
from tests.helpers.world import make_run
from tests.inference.test_tool_calls import OFFERED

pytestmark = pytest.mark.server
CALL = '<tool_call>\n{"name": "search", "arguments": {"q": "Velm"}}\n</tool_call>'
RULES = ("main", "tools", "answer", "all")


async def coding_agent(client: httpx.AsyncClient) -> str:
    """It asks for a title that has the answer, checks its quota, has a part of the work done, and works itself."""
    await say(client, [system("Write a title."), user("Who?")])
    await say(client, [user("quota")])
    part: list[Any] = [system("A part."), user("Search.")]
    await say(client, part, tools=OFFERED)
    await say(client, [system("Not called."), user("Search.")], tools=OFFERED)
    said = await say(client, [system("Main."), user("Who?")], tools=OFFERED)
    await say(client, [system("Sum up."), user("All.")])
    return str(said["content"])


def rows_of(trajectory: Trajectory, rule: str) -> list[int]:
    """The numbers of the conversations that give rows; the others are left out."""
    rows, skipped = build_rows(trajectory, 10**9, conversations=rule)
    assert len(rows) + skipped.count(SIDE_CALL) == len(trajectory.conversations)
    return [row.conversation for row in rows]


async def test_what_holds_a_tool_call_or_the_answer_is_trained_on() -> None:
    replies = ["Who built it: Ada Torrin", "ok", CALL, "nothing", "Ada Torrin", "It was Ada Torrin, then."]
    trajectory = await record(coding_agent, replies, tools=True)
    assert trajectory.status == "finished" and len(trajectory.conversations) == 6, "the record is whole"
    assert [talk.tool_calls for talk in trajectory.conversations] == [None, None, 1, 0, 0, None]
    assert [rows_of(trajectory, rule) for rule in RULES] == [[2, 4], [2], [4], [0, 1, 2, 3, 4, 5]]


async def test_an_answer_that_no_reply_has_is_of_the_last_one_with_tools() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        await coding_agent(client)
        return "written in other words"

    trajectory = await record(program, ["title", "ok", CALL, "nothing", "It was she.", "In sum, she."], tools=True)
    assert rows_of(trajectory, "answer") == [4]


async def test_without_tools_every_step_of_a_program_is_trained_on() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        await say(client, [system("Plan."), user("Who?")])
        return str((await say(client, [system("Answer."), user("Who?")]))["content"])

    trajectory = await record(program, ["look", "Ada"])
    assert [rows_of(trajectory, rule) for rule in RULES] == [[0, 1], [], [1], [0, 1]]
    assert all("tool_calls" not in talk.model_dump() for talk in trajectory.conversations), "records stay as they were"


@pytest.mark.parametrize("level", ["trajectory", "action"])
async def test_another_choice_makes_other_rows_of_the_same_trajectories(tmp_path: Path, level: str) -> None:
    replies = ["title", "ok", CALL, "nothing", "Ada Torrin", "In sum, she."]
    good = await record(coding_agent, replies, tools=True)
    bad = await record(coding_agent, [*replies[:2], CALL.replace("Velm", "x"), "no", "Bo", "He."], tools=True)
    stored = [good, bad.model_copy(update={"key": "k2"})]
    more: dict[str, Any] = {"objective": "dpo", "preference": {"level": "action"}} if level == "action" else {}
    _, config, folder = make_run(tmp_path, max_length=100_000, **more)
    write_jsonl(folder.trajectories / "a.jsonl", stored)
    rewards = {good.key: 1.0, "k2": 0.0}
    choice = QuestionChoice(
        question_id=good.question_id,
        kept=(good.key,),
        cause="kept",
        reason="best",
        rewards=rewards,
        candidates=(*rewards,),
    )
    write_json(folder.selection, Selection(weights={}, rule={}, questions=(choice,)).model_dump(mode="json"))
    counts = []
    for rule in ("main", "all", "main"):
        training = config.training.model_copy(update={"conversations": rule})
        rows = prepare_rows(config.model_copy(update={"training": training}), folder)
        counts.append(len(rows.table))
        assert count_rows(folder.rows) == (len(rows.table), rows.skipped)
        assert (SIDE_CALL in rows.skipped) == (rule == "main")
    # Both attempts took the same actions in the title and the quota.
    assert counts == ([2, 6, 2] if level == "trajectory" else [4, 8, 4])
    assert "conversations" not in TrainingConfig().model_dump(mode="json"), "the digests of earlier runs stay"
