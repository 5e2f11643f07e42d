"""What an episode checks of any system's answer: its documents were shown to a model, and it was not cut off."""

import json

import pytest

from ratchet.agents.core.episode import shown_passages
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import RoleConfig, SystemConfig
from ratchet.core.records import Note, Passage
from tests.helpers.playing import CLAIM, Shelf, engine, passage, play, run

LONG = "The harbour of Velm was built in the year 1204 by Ada Torrin, a mason from the south, and her sons."
RUSSIAN = "Гавань Велма была построена в 1204 году Адой Торрин, каменщицей с юга, и её сыновьями."
SHELF = Shelf(
    {"harbour": [passage(1, LONG), passage(2, "Fish swim."), passage(3, RUSSIAN), passage(4, " ", "Bridges")]}
)


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        (f"Documents:\n[1] {LONG}\n[2] Fish  swim.", ["c1", "c2"]),
        (f"Read this: {LONG[:60]} ...", ["c1"]),
        (json.dumps([f"Line\n{LONG}\n", RUSSIAN]), ["c1", "c3"]),
        ("Were the bridges of Velm built by Ada?", ["c4"]),
        ("Do many fish in the year 1204 swim?", []),
    ],
)
async def test_only_documents_that_a_model_was_shown_support_an_answer(prompt: str, shown: list[str]) -> None:
    async def solve(tools: Tools) -> Answer:
        found = await tools.search("one", "harbour", 4)
        return Answer(await tools.ask(tools.dialogue("one"), prompt), tuple(found))

    trajectory = await run(solve, engine(["Ada"]), shelf=SHELF)
    assert [one.id for one in trajectory.passages] == shown and trajectory.status == "finished"
    [note] = [event.text for event in trajectory.events if isinstance(event, Note)]
    assert note == f"left out {4 - len(shown)} document(s) of the answer that no model was shown"


def test_a_short_document_counts_where_all_of_it_was_shown() -> None:
    fish = Passage(id="f", document_id="f", text="Fish swim.")
    assert shown_passages([fish], ["fish", "they swim"]) == ()
    assert shown_passages([fish], ["fish", "Fish, swim!"]) == (fish,)


@pytest.mark.parametrize("name", ["naive_gen", "no_retrieval", "naive_rag"])
async def test_an_answer_in_prose_that_was_cut_off_is_unparsed_and_kept(name: str) -> None:
    config = SystemConfig(name=name, roles={"answerer": RoleConfig(max_tokens=9)})
    trajectory = await play(config, engine(["The harbour was built by a mason"]), SHELF)
    assert (trajectory.status, trajectory.answer) == ("unparsed", "The harbour was built by a mas")
    assert trajectory.error == "answerer: cut off (length) after 9 tokens"
    whole = await play(SystemConfig(name=name), engine(["Ada"]), SHELF)
    assert (whole.status, whole.error) == ("finished", "")


async def test_an_answer_that_another_reply_gave_whole_is_not_cut_off() -> None:
    async def solve(tools: Tools) -> Answer:
        said = [await tools.ask(tools.dialogue("one"), "Who?") for _ in range(2)]
        return Answer(min(said, key=len))

    config = SystemConfig(roles={"one": RoleConfig(max_tokens=9)})
    assert (await run(solve, engine(["Ada", "I think: Ada"]), config)).status == "finished"
    assert (await run(solve, engine(["The harbour was built by a mason called Ada"] * 2), config)).status == "unparsed"


async def test_an_answer_of_thoughts_alone_is_unparsed() -> None:
    trajectory = await play({"name": "naive_gen"}, engine(["<think>Who was it?"]))
    assert (trajectory.status, trajectory.answer) == ("unparsed", "")


async def test_a_label_is_whole_wherever_its_reply_ended() -> None:
    config = SystemConfig(name="direct", roles={"answerer": RoleConfig(max_tokens=8)})
    trajectory = await play(config, engine(["SUPPORTS"]), question=CLAIM)
    assert (trajectory.status, trajectory.answer) == ("finished", "SUPPORTS")
