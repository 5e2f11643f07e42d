"""A hint helps while a trajectory is sampled, and is in nothing that is recorded or learnt, whatever the system."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.core.hints import OPENINGS, hint_of, holds_hint, run_hinted_episode
from agents.core.system import load_system
from agents.core.tools import Answer, Tools
from inference.engine import EngineError
from inference.scripted import ScriptedEngine
from ratchet.config import Section, SystemConfig
from ratchet.errors import UserError
from ratchet.records import Question, Trajectory
from tests.helpers.any_system import VARIANTS, Library, Talker, play_any, task_of
from tests.helpers.playing import QUESTION, SETTING, Shelf, engine, reach_over
from tests.helpers.tiny import tiny_format
from tests.helpers.world import make_run, prepared_rows, tiny_model
from training.rows import build_rows, check_rows

HINT = hint_of(QUESTION, "answer", Library())


async def play_hinted(name: str, agent: ScriptedEngine, question: Question, **own: Any) -> Trajectory:
    system = load_system(SystemConfig(name=name, settings=own))
    shelf: Shelf = Library()
    with reach_over(shelf) as everywhere:
        return await run_hinted_episode(
            question,
            system,
            {"agent": agent},
            shelf,
            SETTING,
            hint=hint_of(question, "answer", shelf),
            key="k1",
            sample=3,
            seed=7,
            resources=everywhere,
        )


@pytest.mark.parametrize(("name", "own"), VARIANTS, ids=[f"{name} {json.dumps(own)}" for name, own in VARIANTS])
async def test_the_model_sees_the_hint_and_no_row_does(name: str, own: dict[str, Any]) -> None:
    question, agent = task_of(name), engine(Talker().reply)
    made = await play_hinted(name, agent, question, **own)
    told = [tiny_format().decode(call.prompt) for call in agent.calls]
    assert any(holds_hint(prompt) for prompt in told) and made.hint.startswith(OPENINGS["answer"])
    plain, plain_agent = await play_any(name, own)
    assert len(agent.calls) == len(plain_agent.calls), "the second run asks no model"
    assert made.conversations == plain.conversations, "prompts without a hint, actions with the ids that were sampled"
    assert (made.status, made.answer, made.error) == (plain.status, plain.answer, plain.error)
    assert not holds_hint(made.model_copy(update={"hint": ""}).model_dump_json())
    rows, _ = build_rows([made], [made.key], 100_000)
    check_rows(rows, {made.key: made})
    assert not any(holds_hint(tiny_format().decode(row.ids)) for row in rows)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (lambda prompt: "As the hint says, Ada Torrin", "an action speaks of the hint"),
        (lambda prompt: EngineError("the server is gone"), "the server is gone"),
    ],
)
async def test_what_cannot_be_learnt_is_not_a_finished_trajectory(reply: Any, error: str) -> None:
    made = await play_hinted("naive_gen", engine([reply("")]), QUESTION)
    assert (made.status, made.answer) == ("failed" if "server" in error else "unparsed", "") and made.error == error
    assert made.hint == HINT
    assert made.status == "failed" or build_rows([made], [made.key], 100_000)[0] == [], "nothing of it is learnt"


async def test_actions_that_do_not_fit_the_prompts_without_the_hint_are_unparsed() -> None:
    """Of a system that asks once more where the question has no hint."""
    agent, system = engine(["Ada"]), load_system(SystemConfig(name="naive_gen"))
    once = system.spec.solve

    async def solve(question: Question, tools: Tools, settings: Section) -> Answer:
        answer = await once(question, tools, settings)
        return answer if holds_hint(question.text) else await once(question, tools, settings)

    system = replace(system, spec=replace(system.spec, solve=solve))
    made = await run_hinted_episode(
        QUESTION, system, {"agent": agent}, Shelf({}), SETTING, hint=HINT, key="k", sample=0, seed=1
    )
    assert made.status == "unparsed" and "do not fit their prompts" in made.error and len(agent.calls) == 1


def test_the_hint_is_the_answer_or_the_gold_document_in_one_line() -> None:
    assert HINT == "(Hint: the right answer is Ada Torrin)"
    assert hint_of(QUESTION.model_copy(update={"answers": ()}), "answer", Library()) == ""
    assert hint_of(QUESTION, "document", Library()) == "", "no gold documents, and no store to read them from"


def test_a_row_that_still_holds_a_hint_is_refused(tmp_path: Path) -> None:
    tiny_model(tmp_path / "model")
    _, config, folder = make_run(tmp_path, max_steps=1)
    path = folder.trajectories / "a.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    chat = tiny_format()
    for number, line in enumerate(lines):
        line["hint"] = HINT
        if number == 3:
            told = list(chat.encode(f"Who? {HINT.replace('Hint: ', 'Hint:  ')}"))
            conversation = line["conversations"][1]
            first = conversation["spans"][0]["end"]
            conversation["ids"] = conversation["ids"][:first] + told + conversation["ids"][first:]
            for span in conversation["spans"]:
                span["start"] += len(told) if span["start"] else 0
                span["end"] += len(told)
            for event in line["events"]:
                if event["conversation"] == 1:
                    event["start"] += len(told)
                    event["end"] += len(told)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=r"trajectory t3 cannot be trained on: the dialogue of its role searcher still"):
        prepared_rows(config, folder)
