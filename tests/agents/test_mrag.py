"""mRAG in the paper's style: algorithms 1 and 2 step by step, their budgets, and the guard rails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.completion import Message
from inference.scripted import ScriptedEngine
from ratchet.errors import UserError
from ratchet.records import Note, Trajectory
from tests.helpers.playing import Shelf, act, engine, passage, play, query, review, say
from tests.helpers.snapshots import check_snapshot

ADA = passage(1, "Ada Torrin built the harbour.", "Velm")
MILL = passage(2, "The mill is old.")
QUAY = passage(3, "The quay is of stone.")
SEA = passage(4, "The sea is cold.")
SHELF = {"harbour": [ADA, MILL, QUAY, SEA], "builder": [QUAY, ADA]}


def mrag(**settings: Any) -> dict[str, Any]:
    return {"name": "mrag", "settings": settings}


def notes(trajectory: Trajectory) -> list[str]:
    return [event.text for event in trajectory.events if isinstance(event, Note)]


def told(agent: ScriptedEngine, role: str) -> list[Message]:
    """The user messages of a role's longest dialogue, told apart by its system message."""
    openings = {"coordinator": "You lead", "searcher": "You search", "answerer": "You write", "planner": "You plan"}
    calls = [call for call in agent.calls if call.messages[0]["content"].startswith(openings[role])]
    return [message for message in calls[-1].messages if message["role"] == "user"]


WHOLE = [
    act("planner"),
    say(plan=["find the builder", "write"]),
    act("searcher", suggestions=["who built it"]),
    query("harbour"),
    review({1: True, 2: False}, end=False),
    review({3: True, 4: False}, end=False, new="builder"),
    review({3: True, 1: True}, end=True, query_id=1),
    act("reasoner"),
    say(analysis=["Ada built it"]),
    act("summarizer"),
    say(summary="Ada built the harbour."),
    act("answerer", guidance="one name"),
    say(response="Ada"),
    act("validator"),
    say(
        extracted_criteria=[
            {
                "criteria": "short",
                "criteria_explanation": "so",
                "is_response_valid": True,
                "is_response_valid_feedback": "",
            }
        ],
        is_groundedly_supported=True,
        is_groundedly_supported_feedback="",
        is_correctly_answered=True,
        is_correctly_answered_feedback="give the full name",
    ),
    act("reviser"),
    say(response="Ada Torrin"),
    act("finisher"),
]


SHORT = [act("searcher"), query("harbour"), review({1: True}, end=True)]


async def test_the_whole_of_algorithms_1_and_2() -> None:
    agent, shelf = engine(WHOLE), Shelf(SHELF)
    trajectory = await play(mrag(), agent, shelf)
    assert (trajectory.status, trajectory.answer, trajectory.error) == ("finished", "Ada Torrin", "")
    assert trajectory.passages == (ADA, QUAY)
    assert (trajectory.key, trajectory.sample, trajectory.seed) == ("k1", 3, 7)
    assert (trajectory.policy, trajectory.system) == ("p1", "mrag")
    assert shelf.asked == [("harbour", 2, 0), ("harbour", 2, 2), ("builder", 2, 0)]
    roles = [call.role for call in trajectory.model_calls]
    assert " ".join(roles) == (
        "coordinator planner coordinator searcher searcher searcher searcher coordinator reasoner coordinator "
        "summarizer coordinator answerer coordinator validator coordinator reviser coordinator"
    )
    assert {call.parse for call in trajectory.model_calls} == {"ok"}
    assert [c.role for c in trajectory.conversations] == (
        ["coordinator", "planner", "searcher", "reasoner", "summarizer", "answerer", "validator"]
    )
    check_snapshot("mrag", agent)


async def test_calls_used_up_the_response_so_far_is_the_answer() -> None:
    agent = engine([act("answerer"), say(response="Ada"), act("planner"), say(plan=[])])
    trajectory = await play(mrag(max_calls=2), agent)
    assert (trajectory.status, trajectory.answer) == ("out_of_budget", "Ada")
    assert trajectory.error == "coordinator: stopped after 2 calls (max_calls)"


async def test_the_default_budget_is_thirty_calls() -> None:
    agent = engine(lambda prompt, params, messages: _planning(messages))
    trajectory = await play(mrag(), agent)
    assert trajectory.status == "out_of_budget" and trajectory.answer == ""
    assert [call.role for call in trajectory.model_calls] == ["coordinator", "planner"] * 30


def _planning(messages: Any) -> str:
    return act("planner") if messages[0]["content"].startswith("You lead") else say(plan=[])


async def test_a_full_context_keeps_the_response_and_documents() -> None:
    long = "very " * 3000
    agent = engine(
        [*SHORT, act("answerer"), say(response="Ada"), act("planner", information=long), say(plan=[])],
        max_context=3500,
    )
    trajectory = await play(mrag(), agent, Shelf(SHELF))
    assert (trajectory.status, trajectory.answer, trajectory.passages) == ("out_of_budget", "Ada", (ADA,))
    assert trajectory.error.startswith("coordinator: its context of 3500 tokens")


async def test_finishing_at_once_is_an_empty_answer() -> None:
    trajectory = await play(mrag(), engine([act("finisher")]))
    assert (trajectory.status, trajectory.answer) == ("finished", "")
    assert notes(trajectory) == ["finished without a response"]


async def test_the_reviser_is_refused_before_any_response_and_that_counts() -> None:
    agent = engine([act("reviser"), act("answerer"), say(response="Ada")])
    trajectory = await play(mrag(max_calls=2), agent)
    assert (trajectory.status, trajectory.answer) == ("out_of_budget", "Ada")
    assert "answerer comes first" in json.loads(told(agent, "coordinator")[1]["content"])["error"]
    assert notes(trajectory)[0].startswith("refused")


async def test_malformed_output_of_a_worker_ends_it_as_unparsed() -> None:
    trajectory = await play(mrag(), engine([act("planner"), '{"plan": "one"}']))
    assert trajectory.status == "unparsed" and trajectory.error.startswith("planner: plan:")


async def test_a_query_is_retrieved_with_at_most_five_times() -> None:
    """Section 5 of the paper; its table 2 shows documents 1 to 10 of one query."""
    many = [passage(n) for n in range(1, 40)]
    shelf = Shelf({"harbour": many})
    agent = engine([act("searcher"), query("harbour"), *[review({}, end=False)] * 6, act("finisher")])
    trajectory = await play(mrag(), agent, shelf)
    assert [offset for _, _, offset in shelf.asked] == [0, 2, 4, 6, 8]
    shown = [message["content"] for message in told(agent, "searcher")]
    assert "as often as is allowed" in shown[-1]
    assert notes(trajectory)[0].startswith("stopped: This query has been used")
    assert trajectory.status == "finished"


async def test_a_query_issued_again_goes_on_where_it_was() -> None:
    shelf = Shelf({"harbour": [ADA, MILL, QUAY, SEA], "Harbour ": [ADA, MILL, QUAY, SEA]})
    agent = engine([*SHORT, act("searcher"), query("Harbour "), review({3: True}, end=True), act("finisher")])
    trajectory = await play(mrag(), agent, shelf)
    assert shelf.asked == [("harbour", 2, 0), ("Harbour ", 2, 2)]
    assert trajectory.passages == (ADA, QUAY)
    assert len([c for c in trajectory.conversations if c.role == "searcher"]) == 1
    assert "Query ID: 0" in told(agent, "searcher")[-1]["content"]


async def test_an_exhausted_index_is_told_once_then_ends_the_search() -> None:
    shelf = Shelf({"harbour": [ADA, MILL, QUAY]})
    turns = [review({1: True, 2: False}, end=False), review({3: False}, end=False), review({}, end=False)]
    agent = engine([act("searcher"), query("harbour"), *turns, act("finisher")])
    trajectory = await play(mrag(), agent, shelf)
    assert [len(search.passages) for search in trajectory.searches] == [2, 1]
    assert "There are no more documents" in told(agent, "searcher")[-1]["content"]
    assert trajectory.status == "finished" and trajectory.passages == (ADA,)


async def test_the_searcher_may_turn_to_another_query_when_one_is_dry() -> None:
    shelf = Shelf({"builder": [ADA]})
    agent = engine(
        [
            act("searcher"),
            query("nothing"),
            review({}, end=False, new="builder"),
            review({1: True}, end=True),
            act("finisher"),
        ]
    )
    trajectory = await play(mrag(), agent, shelf)
    assert shelf.asked == [("nothing", 2, 0), ("builder", 2, 0)] and trajectory.passages == (ADA,)


async def test_a_change_without_a_new_query_keeps_the_query() -> None:
    shelf = Shelf(SHELF)
    change = json.loads(review({1: True}, end=False)) | {"change_search_query": True}
    agent = engine([act("searcher"), query("harbour"), json.dumps(change), review({}, end=True), act("finisher")])
    await play(mrag(), agent, shelf)
    assert shelf.asked == [("harbour", 2, 0), ("harbour", 2, 2)]


async def test_a_new_query_that_is_not_asked_for_is_not_used() -> None:
    shelf = Shelf(SHELF)
    stray = json.loads(review({1: True}, end=False)) | {"new_search_query": "builder"}
    agent = engine([act("searcher"), query("harbour"), json.dumps(stray), review({}, end=True), act("finisher")])
    await play(mrag(), agent, shelf)
    assert shelf.asked == [("harbour", 2, 0), ("harbour", 2, 2)]


async def test_documents_that_were_not_shown_are_ignored() -> None:
    agent = engine([act("searcher"), query("harbour"), review({2: True, 3: True, 99: True}, end=True), act("finisher")])
    trajectory = await play(mrag(), agent, Shelf(SHELF))
    assert trajectory.passages == (MILL,)


async def test_documents_that_the_searcher_numbers_by_their_place_are_those_of_the_page() -> None:
    turns = [review({0: False, 1: True}, end=False), review({1: True, 2: False}, end=True)]
    trajectory = await play(mrag(), engine([act("searcher"), query("harbour"), *turns, act("finisher")]), Shelf(SHELF))
    assert trajectory.passages == (MILL, QUAY)


async def test_search_turns_and_documents_a_turn_are_settings() -> None:
    shelf = Shelf(SHELF)
    agent = engine([act("searcher"), query("harbour"), *[review({1: True, 2: True, 3: True}, end=False)] * 9])
    trajectory = await play(mrag(max_search_turns=1, documents_per_turn=3, max_calls=1), agent, shelf)
    assert shelf.asked == [("harbour", 3, 0)]
    assert trajectory.passages == (ADA, MILL, QUAY)
    assert "max_search_turns" in notes(trajectory)[0]


@pytest.mark.parametrize(
    ("length", "words"), [("any", ""), ("concise", "at most 100 words"), ("long", "every aspect of the question")]
)
@pytest.mark.parametrize("system", ["mrag", "no_retrieval", "vanilla_rag"])
async def test_a_response_is_asked_for_with_a_length(system: str, length: str, words: str) -> None:
    """The paper: asking for longer responses alone raised nugget recall."""
    whole = WHOLE if system == "mrag" else [say(response="Ada")]
    agent = engine(whole)
    await play({"name": system, "settings": {"length": length}}, agent, Shelf(SHELF))
    shown = [call.messages for call in agent.calls]
    writers = [messages for messages in shown if messages[0]["content"].startswith(("You write", "You are"))]
    asked = " ".join(message["content"] for message in writers[-1] if message["role"] != "assistant")
    assert asked.count(words or "100 words") == (0 if not words else 2 if system == "mrag" else 1), "reviser too"
    others = [call.messages for call in agent.calls if call.messages not in writers]
    assert not words or words not in str(others)


async def test_frozen_writers_play_the_base_model() -> None:
    agent, writer = engine([act("answerer"), act("reviser"), act("finisher")]), engine([say(response="a")] * 2)
    frozen = {"model": "writer", "trainable": False}
    config = mrag() | {"roles": {"answerer": frozen, "reviser": frozen | {"max_tokens": 50}}}
    trajectory = await play(config, {"agent": agent, "writer": writer})
    assert {(call.adapter, call.params.temperature) for call in agent.calls} == {("adapters/one", 0.7)}
    assert [(c.adapter, c.params.temperature, c.params.max_tokens) for c in writer.calls] == [
        (None, 0.1, 4096),
        (None, 0.1, 50),
    ]
    assert [c.trainable for c in trajectory.conversations] == [True, False]


async def test_answerer_and_reviser_must_be_one_model() -> None:
    config = mrag() | {"roles": {"answerer": {"trainable": False}}}
    with pytest.raises(UserError, match="answerer and reviser"):
        await play(config, engine([]))


async def test_only_offered_agents_can_be_named() -> None:
    trajectory = await play(mrag(agents=["searcher"]), engine([act("planner")]))
    assert trajectory.status == "unparsed" and "'searcher', 'answerer', 'finisher'" in trajectory.error


async def test_valid_moves_offer_finisher_and_reviser_only_after_a_response() -> None:
    early = await play(mrag(valid_moves=True), engine([act("finisher")]))
    assert early.status == "unparsed" and "finisher" not in early.error.partition("expected tags")[2]
    agent = engine([act("answerer"), say(response="Ada"), act("reviser"), say(response="Ada Torrin"), act("finisher")])
    trajectory = await play(mrag(valid_moves=True), agent)
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
