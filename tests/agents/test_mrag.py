"""mRAG in the paper's style: algorithms 1 and 2 step by step, their budgets, and the guard rails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.core.errors import UserError
from ratchet.core.records import Note, Trajectory
from ratchet.inference.completion import Message
from ratchet.inference.scripted import ScriptedEngine
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
    openings = {"coordinator": "You lead", "searcher": "You search"}
    calls = [call for call in agent.calls if call.messages[0]["content"].startswith(openings[role])]
    return [message for message in calls[-1].messages if message["role"] == "user"]


CRITERION = {"criteria": "short", "criteria_explanation": "so", "is_response_valid": True}
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
        extracted_criteria=[CRITERION | {"is_response_valid_feedback": ""}],
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
    assert [call.role for call in trajectory.model_calls if call.role != "coordinator"] == (
        ["planner", *["searcher"] * 4, "reasoner", "summarizer", "answerer", "validator", "reviser"]
    )
    assert {call.parse for call in trajectory.model_calls} == {"ok"}
    assert [c.role for c in trajectory.conversations] == (
        ["coordinator", "planner", "searcher", "reasoner", "summarizer", "answerer", "validator"]
    )
    check_snapshot("mrag", agent)


async def test_the_default_budget_is_thirty_calls() -> None:
    def planning(_: str, __: Any, messages: Any) -> str:
        return act("planner") if messages[0]["content"].startswith("You lead") else say(plan=[])

    trajectory = await play(mrag(), engine(planning))
    assert trajectory.status == "out_of_budget" and trajectory.answer == ""
    assert trajectory.error == "coordinator: stopped after 30 calls (max_calls)"
    assert [call.role for call in trajectory.model_calls] == ["coordinator", "planner"] * 30


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


LOOSE = [
    act("planner", information=None),
    say(plan="find the builder"),
    act("searcher", suggestions="who built it", information=["nothing", "yet"]),
    query("harbour"),
    json.dumps({key: value for key, value in json.loads(review({1: True}, end=True)).items() if key != "query_id"}),
    act("reasoner", information={"builder": "Ada"}),
    say(analysis="Ada built it"),
    act("answerer", guidance=["one name", "short"]).replace("answerer", "Answerer"),
    say(response=["Ada"]),
    act("finisher"),
]


async def test_a_value_of_which_the_figures_name_no_type_may_be_any_and_is_counted() -> None:
    agent = engine(LOOSE)
    trajectory = await play(mrag() | {"malformed": "reask"}, agent, Shelf(SHELF))
    assert (trajectory.status, trajectory.answer, trajectory.passages) == ("finished", "Ada", (ADA,))
    loose = [1, 1, 1, 0, 0, 1, 1, 1, 1, 0]
    assert [bool(call.repairs) for call in trajectory.model_calls] == [bool(one) for one in loose]
    [answerer] = [c.messages[-1]["content"] for c in agent.calls if c.messages[0]["content"].startswith("You write")]
    assert json.loads(answerer)["plan"] == "one name\nshort"


# The searcher

CHANGE = json.dumps(json.loads(review({1: True}, end=False)) | {"change_search_query": True})
STRAY = json.dumps(json.loads(review({1: True}, end=False)) | {"new_search_query": "builder"})


@pytest.mark.parametrize(
    ("first", "turns", "asked", "kept"),
    [
        # Section 5 of the paper: five retrievals of one query; its table 2 shows documents 1 to 10.
        ("many", [review({}, end=False)] * 6, [("many", n) for n in (0, 2, 4, 6, 8)], []),
        ("few", [review({1: True}, end=False), *[review({}, end=False)] * 2], [("few", 0), ("few", 2)], [ADA]),
        (
            "nothing",
            [review({}, end=False, new="builder"), review({1: True}, end=True)],
            [("nothing", 0), ("builder", 0)],
            [QUAY],
        ),
        ("harbour", [CHANGE, review({}, end=True)], [("harbour", 0), ("harbour", 2)], [ADA]),
        ("harbour", [STRAY, review({}, end=True)], [("harbour", 0), ("harbour", 2)], [ADA]),
        ("harbour", [review({2: True, 3: True, 99: True}, end=True)], [("harbour", 0)], [MILL]),
        # Ids are literal: table 2 judges documents of an earlier page again.
        ("harbour", [review({0: False, 1: True}, end=True)], [("harbour", 0)], [ADA]),
        (
            "harbour",
            [review({}, end=False), review({1: True, 2: False}, end=True)],
            [("harbour", 0), ("harbour", 2)],
            [ADA],
        ),
        (
            "harbour",
            [review({}, end=False), review({2: True, 3: True}, end=True)],
            [("harbour", 0), ("harbour", 2)],
            [MILL, QUAY],
        ),
        # Places on the page: none of them was shown for this query.
        *(
            (
                "harbour",
                [review({}, end=False, new="tide"), review({first: False, first + 1: True}, end=True)],
                [("harbour", 0), ("tide", 0)],
                kept,
            )
            for first, kept in ((0, [SEA]), (1, [SEA]), (2, [QUAY]), (4, []))
        ),
    ],
)
async def test_the_searcher_goes_on_changes_its_query_or_ends(
    first: str, turns: list[str], asked: list[tuple[str, int]], kept: list[Any]
) -> None:
    more = {"many": [passage(n) for n in range(1, 40)], "few": [ADA, MILL, QUAY], "tide": [QUAY, SEA]}
    shelf = Shelf({**SHELF, **more})
    trajectory = await play(mrag(), engine([act("searcher"), query(first), *turns, act("finisher")]), shelf)
    assert trajectory.status == "finished" and trajectory.passages == tuple(kept)
    assert [(words, offset) for words, _, offset in shelf.asked] == asked


@pytest.mark.parametrize(
    ("size", "turns", "remark"),
    [
        (39, 6, "This query has been used as often as is allowed."),
        (3, 3, "There are no more documents for this query."),
    ],
)
async def test_a_dry_query_is_told_once_and_then_ends_the_search(size: int, turns: int, remark: str) -> None:
    agent = engine([act("searcher"), query("harbour"), *[review({}, end=False)] * turns, act("finisher")])
    trajectory = await play(mrag(), agent, Shelf({"harbour": [passage(n) for n in range(1, size + 1)]}))
    assert remark in told(agent, "searcher")[-1]["content"] and notes(trajectory)[0] == f"stopped: {remark}"


async def test_a_query_issued_again_goes_on_where_it_was() -> None:
    shelf = Shelf({"harbour": [ADA, MILL, QUAY, SEA], "Harbour": [SEA, MILL]})
    other = [act("searcher"), query("Harbour"), review({}, end=True, query_id=1)]  # ranked in its own way
    again = [act("searcher"), query("harbour"), review({4: True}, end=True)]
    agent = engine([*SHORT, *other, *again, act("finisher")])
    trajectory = await play(mrag(), agent, shelf)
    assert shelf.asked == [("harbour", 2, 0), ("Harbour", 2, 0), ("harbour", 2, 2)]
    assert trajectory.passages == (ADA, QUAY)
    assert len([c for c in trajectory.conversations if c.role == "searcher"]) == 1
    assert "Query ID: 0" in told(agent, "searcher")[-1]["content"]


async def test_search_turns_and_documents_a_turn_are_settings() -> None:
    shelf = Shelf(SHELF)
    agent = engine([act("searcher"), query("harbour"), *[review({1: True, 2: True, 3: True}, end=False)] * 9])
    trajectory = await play(mrag(max_search_turns=1, documents_per_turn=3, max_calls=1), agent, shelf)
    assert shelf.asked == [("harbour", 3, 0)]
    assert trajectory.passages == (ADA, MILL, QUAY)
    assert "max_search_turns" in notes(trajectory)[0]


# Settings


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


TWICE = [
    *SHORT,
    act("reasoner", question="Who was it?"),
    say(analysis=["Ada"]),
    act("searcher"),
    query("builder"),
    review({3: True}, end=True, query_id=1),
    act("reasoner"),
    say(analysis=["Ada Torrin"]),
    act("answerer"),
    say(response="Ada"),
    act("reviser"),
    say(response="Ada Torrin"),
    act("finisher"),
]


@pytest.mark.parametrize(("conversations", "searchers", "reasoners"), [("kept", 1, 1), ("fresh", 2, 2)])
async def test_an_agent_that_is_called_again_remembers_or_sees_its_input_alone(
    conversations: str, searchers: int, reasoners: int
) -> None:
    agent = engine(TWICE)
    trajectory = await play(mrag(conversations=conversations), agent, Shelf(SHELF))
    assert (trajectory.answer, trajectory.passages) == ("Ada Torrin", (ADA, QUAY))
    roles = [conversation.role for conversation in trajectory.conversations]
    assert (roles.count("searcher"), roles.count("reasoner")) == (searchers, reasoners)
    assert (roles.count("answerer"), roles.count("coordinator")) == (1, 1), "the reviser has the response"


async def test_an_agent_that_begins_anew_gets_all_that_was_found_again() -> None:
    brief = [
        say(agent="searcher"), say(search_query="harbour"), say(relevance=[True, False], end_search=True),
        say(agent="reasoner"), say(analysis=["a"]), say(agent="reasoner"), say(analysis=["b"]), say(agent="planner"),
    ]  # fmt: skip
    for conversations, times in (("kept", 1), ("fresh", 2)):
        agent = engine(brief)
        await play(mrag(style="brief", explanations=False, conversations=conversations), agent, Shelf(SHELF))
        asked = [c.messages[-1]["content"] for c in agent.calls if "Think" in c.messages[0]["content"]]
        assert sum("The mill is old." in message for message in asked) == times


@pytest.mark.parametrize("is_published", [False, True])
async def test_agents_may_be_given_the_users_question_and_all_documents(is_published: bool) -> None:
    agent = engine(TWICE)
    settings = {"question": "user", "found": "all"} if is_published else {}
    await play(mrag(**settings), agent, Shelf(SHELF))
    reports = [message["content"] for message in told(agent, "coordinator")]
    assert ["documents" in r and "Ada Torrin built" in r for r in reports].count(True) == (2 if is_published else 1)
    asked = [c.messages[-1]["content"] for c in agent.calls if "You are an analyst" in c.messages[0]["content"]]
    assert ("Who was it?" in asked[0]) is not is_published


async def test_frozen_writers_play_the_base_model_and_share_it() -> None:
    agent, writer = engine([act("answerer"), act("reviser"), act("finisher")]), engine([say(response="a")] * 2)
    frozen = {"model": "writer", "trainable": False}
    config = mrag() | {"roles": {"answerer": frozen, "reviser": frozen | {"max_tokens": 50}}}
    trajectory = await play(config, {"agent": agent, "writer": writer})
    assert [(c.adapter, c.params.max_tokens) for c in writer.calls] == [(None, 4096), (None, 50)]
    assert [c.trainable for c in trajectory.conversations] == [True, False]
    with pytest.raises(UserError, match="answerer and reviser"):
        await play(mrag() | {"roles": {"answerer": {"trainable": False}}}, engine([]))


async def test_only_offered_agents_can_be_named() -> None:
    trajectory = await play(mrag(agents=["searcher"]), engine([act("planner")]))
    assert trajectory.status == "unparsed" and "'searcher', 'answerer', 'finisher'" in trajectory.error


async def test_valid_moves_offer_finisher_and_reviser_only_after_a_response() -> None:
    early = await play(mrag(valid_moves=True), engine([act("finisher")]))
    assert early.status == "unparsed" and "finisher" not in early.error.partition("expected tags")[2]
    agent = engine([act("answerer"), say(response="Ada"), act("reviser"), say(response="Ada Torrin"), act("finisher")])
    trajectory = await play(mrag(valid_moves=True), agent)
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
