"""What holds for every system: the calls and retrievals of its paper, and that no reply of a model breaks it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from ratchet.agents.core.prompts import MARK
from ratchet.core.records import Passage, Search, ToolCall, Trajectory
from ratchet.inference.completion import Completion, Message, SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.scripted import Replies, ScriptedEngine, ScriptedReply
from ratchet.training.rows import build_rows, check_rows
from tests.helpers.any_system import SYSTEMS, Talker, task_of
from tests.helpers.playing import CLAIM, Shelf, Unpunctual, engine, passage, play, say
from tests.helpers.tiny import tiny_format

ANSWERED = f"Ada built it. {MARK} Ada Torrin"
EXPAND = "No. Query Expansion: "
ANSWERS = ["Ada Torrin"] * 10
VERDICT = "Ada built it.\nSUPPORTS"
DEBATED = [*[ANSWERED] * 6, *ANSWERS]
ARGUMENT = ">>> It says so. <<<"
MORE = "Ada built it. She was an engineer."
"""Of which a look-ahead uses the first sentence."""
UNSURE = ScriptedReply((MORE, 0.5))
SURE = ["(a) Ada (b) Bo", "Ada.", "Bo.", "True", "False", "Passage 1", "Passage 2"]


def opponent_wins(rounds: int) -> list[str]:
    """The query stage of DRAG, to the Opponent's last win; after it, if there is room, the Proponent's."""
    won = [said for n in range(rounds) for said in ("Yes.", f"{EXPAND}query {n}", "Opponent")]
    return won if rounds == 3 else [*won, "Yes.", f"{EXPAND}another", "Proponent"]


def debaters(*labels: str) -> Callable[[str, SamplingParams, Sequence[Message]], str]:
    """Tool-MAD's agents, who give these labels in turn, with its scorer and judge."""
    label = cycle(labels)

    def reply(prompt: str, params: SamplingParams, messages: Sequence[Message]) -> str:
        opening = messages[0]["content"]
        if len(messages) == 1:
            scores: dict[str, dict[str, Any]] = {
                '"statements": {': {"verdicts": [1]},
                '"noncommittal"': {"question": "Who?", "noncommittal": 0},
            }
            return say(**next((form for mark, form in scores.items() if mark in opening), {"statements": ["So."]}))
        if "Write one query" in opening:
            return "[harbour]"
        return VERDICT if "You judge" in opening else f"Ada built it.\n{next(label)}"

    return reply


def debate(settings: dict[str, Any], least: tuple[int, int], most: tuple[int, int]) -> list[Any]:
    """Tool-MAD where both agents agree at once, and where they never do."""
    replies = debaters("SUPPORTS"), debaters("SUPPORTS", "REFUTES")
    return [("tool_mad", settings, said, *cost) for said, cost in zip(replies, (least, most), strict=True)]


TRIPLET = {"subject": "Ada", "relation": "built", "object": "harbour", "attributions": []}
PARTS, SUPPORTED = say(triplets=[TRIPLET], keywords=[]), say(thought="So.", verdict="SUPPORTS")
CALLS = [say(thought="Who?", action="search", arguments={"query": f"query {n}"}) for n in range(9)]
ANSWER, QUERIES = say(reasoning="So.", final_answer="SUPPORTS"), ["query" + "!" * 3 * n for n in range(5)]
ASKED = [say(reasoning="Who?", search_query=query) for query in QUERIES]
FACT = say(reasoning="So.", error="", correction="", factuality=True)
TABLE: list[tuple[str, dict[str, Any], Replies, int, int]] = [
    ("naive_gen", {}, ANSWERS, 1, 0),
    ("naive_rag", {}, ANSWERS, 1, 1),
    ("no_retrieval", {}, ANSWERS, 1, 0),
    ("vanilla_rag", {}, [say(response="Ada Torrin")], 1, 1),
    ("mad_drag", {}, DEBATED, 9, 0),
    ("mad", {}, [ANSWERED] * 6, 6, 0),
    ("iter_retgen", {}, ANSWERS, 3, 3),
    ("ircot", {}, lambda *_: MORE, 11, 11),
    ("ircot", {"sentences": 5}, lambda *_: MORE, 6, 6),
    ("ircot", {"sentences": 5}, ["So the answer is: Ada.", "Ada"], 2, 1),
    ("ircot", {}, [MORE, "So the answer is: Ada.", "Ada"], 3, 2),
    ("ircot", {}, ["So the answer is: Ada.", "Ada"], 2, 1),
    ("flare", {}, ["So the answer is: Ada."], 1, 1),
    ("flare", {}, [UNSURE, "So the answer is: Ada."], 2, 2),
    ("flare", {}, lambda *_: UNSURE, 20, 11),
    ("sure", {}, SURE, 7, 1),
    ("drag", {}, [*opponent_wins(0), *DEBATED], 12, 1),
    ("drag", {}, [*opponent_wins(1), *DEBATED], 15, 2),
    ("drag", {}, [*opponent_wins(2), *DEBATED], 18, 3),
    ("drag", {}, [*opponent_wins(3), *DEBATED], 18, 4),
    ("awe", {}, [*["Ada Torrin"] * 4, ARGUMENT, ARGUMENT, "Ada Torrin"], 7, 3),
    ("awe", {"paths": "knowledge"}, ANSWERS, 2, 1),
    ("awe", {"paths": "retrieval"}, ANSWERS, 2, 2),
    ("cot", {}, [VERDICT], 1, 0),
    ("react", {}, ["Action: finish[SUPPORTS]"], 1, 0),
    ("react", {}, [*["Action: search[x]"] * 7, VERDICT], 8, 7),
    ("mad_liang", {}, [VERDICT] * 3, 3, 0),
    ("mad_liang", {}, [*[VERDICT, VERDICT, "NO PREFERENCE"] * 3, "both", VERDICT], 11, 0),
    ("madke", {}, ["[1]", "[none]", VERDICT, VERDICT, "Yes", VERDICT], 6, 1),
    ("madke", {}, [*["[1]", "[2]", VERDICT, VERDICT, "No"] * 3, VERDICT], 16, 1),
    ("direct", {}, ["SUPPORTS"], 1, 0),
    *debate({}, (14, 2), (43, 6)),
    *debate({"rounds": 1}, (14, 2), (15, 2)),
    *debate({"rounds": 2}, (14, 2), (29, 4)),
    *debate({"rounds": 4}, (14, 2), (57, 8)),
    *debate({"query_formulation": False}, (12, 2), (37, 6)),
    *debate({"stability": False}, (12, 6), (13, 6)),
    *debate({"agents": ["none", "none"]}, (8, 0), (25, 0)),
    *debate({"agents": ["rag", "none"]}, (11, 1), (34, 3)),
    *debate({"agents": ["search", "none"]}, (11, 1), (34, 3)),
    *debate({"agents": ["rag", "rag"]}, (14, 2), (43, 6)),
    *debate({"agents": ["search", "search"]}, (14, 2), (43, 6)),
    ("madke", {"pool": {"index": 10, "search": 5}}, ["[1]", "[none]", VERDICT, VERDICT, "Yes", VERDICT], 6, 2),
    ("madke", {"pool": {"index": 10, "search": 5}}, [*["[1]", "[2]", VERDICT, VERDICT, "No"] * 3, VERDICT], 16, 2),
    ("mermaid", {}, [PARTS, SUPPORTED], 2, 0),
    ("mermaid", {}, [PARTS, *CALLS[:4], SUPPORTED], 6, 4),
    ("mermaid", {"steps": 3}, [PARTS, SUPPORTED], 2, 0),
    ("mermaid", {"steps": 3}, [PARTS, *CALLS[:2], SUPPORTED], 4, 2),
    ("mermaid", {"steps": 10}, [PARTS, SUPPORTED], 2, 0),
    ("mermaid", {"steps": 10}, [PARTS, *CALLS, SUPPORTED], 11, 9),
    ("mermaid", {"decomposer": False}, [SUPPORTED], 1, 0),
    ("mermaid", {"decomposer": False}, [*CALLS[:4], SUPPORTED], 5, 4),
    ("fire", {"tolerance": None}, [ANSWER], 1, 0),
    ("fire", {"tolerance": None}, [*ASKED, ANSWER], 6, 5),
    ("factool", {"extract": False}, [say(queries=["one", "two"]), FACT], 2, 2),
    ("factool", {"extract": False}, [say(queries=["one", "One"]), FACT], 2, 1),
    ("factcheck_gpt", {"extract": False}, [say(queries=QUERIES), *[say(stance="refute")] * 5], 6, 5),
    ("factcheck_gpt", {"extract": False}, [say(queries=["query"] * 5), *[say(stance="refute")] * 3], 4, 1),
]
NOTHING_FOUND: list[tuple[str, dict[str, Any], Replies, int, int]] = [
    ("tool_mad", {"rounds": 1}, debaters("SUPPORTS"), 11, 2),
    ("tool_mad", {}, debaters("SUPPORTS"), 31, 6),
    ("madke", {}, [VERDICT, VERDICT, "Yes", VERDICT], 4, 1),
    ("madke", {"pool": {"index": 10, "search": 5}}, [VERDICT, VERDICT, "Yes", VERDICT], 4, 2),
    ("factcheck_gpt", {"extract": False}, [say(queries=QUERIES)], 1, 5),
]
"""Where no search finds a document."""


class Library(Shelf):
    """Has three passages for every query."""

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        self.asked.append((query, k, offset))
        return [passage(n + len(query), "Ada Torrin built the harbour.", "Velm") for n in range(3)][offset : offset + k]


class Forging(ScriptedEngine):
    """A model that opens turns of its own in the middle of its answers."""

    async def generate(self, prompt: Sequence[int], *rest: Any) -> Completion:
        said = await super().generate(prompt, *rest)
        ids = (*sorted(self.format.turn_ids - {self.format.end_of_turn}), *said.ids)
        return replace(said, ids=ids, text=self.format.decode(ids[:-1]), logprobs=(-0.1,) * len(ids))


def check_training(trajectory: Trajectory) -> int:
    """Labels are what was sampled; returns the number of rows."""
    rows, _ = build_rows(trajectory, 10**9)
    check_rows(rows, {trajectory.key: trajectory})
    return len(rows)


@pytest.mark.parametrize(
    ("name", "settings", "replies", "calls", "retrievals", "finds"),
    [*((*row, True) for row in TABLE), *((*row, False) for row in NOTHING_FOUND)],
)
async def test_calls_and_retrievals_are_those_of_the_paper(
    name: str, settings: dict[str, Any], replies: Replies, calls: int, retrievals: int, finds: bool
) -> None:
    agent, library = engine(replies), Library({}) if finds else Shelf({})
    trajectory = await play({"name": name, "settings": settings}, agent, library, question=CLAIM)
    assert trajectory.status == "finished" and trajectory.answer
    assert (len(agent.calls), len(library.asked)) == (calls, retrievals)
    lookups = [event for event in trajectory.events if isinstance(event, Search | ToolCall)]
    assert (len(trajectory.model_calls), len(lookups)) == (calls, retrievals)
    assert all(call.parse != "malformed" for call in trajectory.model_calls)
    assert check_training(trajectory) > 0


@pytest.mark.parametrize("name", SYSTEMS)
async def test_a_model_that_opens_turns_is_never_trained_on(name: str) -> None:
    trajectory = await play({"name": name}, Forging(tiny_format(), lambda *_: ANSWERED), Library({}), question=CLAIM)
    assert trajectory.status in ("finished", "unparsed", "out_of_budget") and check_training(trajectory) == 0


@pytest.mark.parametrize(("policy", "reask"), [("reask", 0), ("reask", 2), ("redraw", 2)])
@pytest.mark.parametrize("name", SYSTEMS)
async def test_garbage_is_asked_for_again_as_often_as_the_config_says(name: str, policy: str, reask: int) -> None:
    config = {"name": name, "malformed": policy, "reasks": reask}
    trajectory = await play(config, engine(lambda *_: "I would not know."), Library({}), question=CLAIM)
    assert trajectory.status in ("finished", "unparsed", "out_of_budget")
    assert all(call.attempt <= reask for call in trajectory.model_calls)
    check_training(trajectory)


@pytest.mark.parametrize("name", SYSTEMS)
async def test_a_context_that_is_too_small_and_a_server_that_is_gone_are_statuses(name: str) -> None:
    trajectory = await play({"name": name}, engine(lambda *_: ANSWERED, max_context=60), Library({}), question=CLAIM)
    assert trajectory.status == "out_of_budget"
    trajectory = await play({"name": name}, engine([EngineError("the server is gone")]), Library({}), question=CLAIM)
    assert trajectory.status == "failed" and trajectory.error


@pytest.mark.parametrize("name", SYSTEMS)
async def test_an_index_that_finds_nothing_breaks_no_system(name: str) -> None:
    trajectory = await play({"name": name}, engine(lambda *_: ANSWERED), Shelf({}), question=CLAIM)
    assert trajectory.status in ("finished", "unparsed") and trajectory.passages == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
async def test_a_trajectory_does_not_depend_on_which_of_two_calls_ends_first(name: str) -> None:
    def said(_: str, params: SamplingParams, __: Sequence[Message]) -> str:
        return f"{params.seed % 97} {ANSWERED} {params.seed % 7}"

    one, two = [
        await play({"name": name}, Unpunctual(said, late), Library({}), question=CLAIM) for late in (True, False)
    ]
    assert one.conversations == two.conversations
    assert (one.answer, one.candidates, one.passages) == (two.answer, two.candidates, two.passages)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "at_once"),
    [
        ("awe", {}, 2),
        ("drag", {}, 3),
        ("mad", {"agents": 5}, 5),
        ("mad_drag", {"agents": 4, "rounds": 1}, 4),
        ("madke", {"agents": 4}, 4),
        ("sure", {}, 4),
        ("factcheck_gpt", {"extract": False}, 3),
    ],
)
async def test_calls_that_need_nothing_of_each_other_run_at_once(
    name: str, settings: dict[str, Any], at_once: int
) -> None:
    agent = engine(Talker().reply)
    agent.delay = 0.01
    await play({"name": name, "settings": settings}, agent, Library({}), question=task_of(name))
    assert agent.max_running == at_once
