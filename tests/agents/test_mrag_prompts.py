"""mRAG's words: every field of the paper is asked for, brief prompts are brief, and no wording changes unnoticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.agents.core.output import json_schema
from ratchet.agents.mrag import SYSTEM
from ratchet.agents.mrag.paper import Brief, Paper
from ratchet.agents.mrag.state import AGENTS, Settings
from ratchet.core.records import Note
from ratchet.inference.chat_formats import WrapperFormat
from ratchet.inference.tokenizer import load_tokenizer
from tests.helpers.playing import Shelf, engine, passage, play, say
from tests.helpers.snapshots import check_snapshot

# Figures 15 to 21: what an agent is given, and what it emits.
FIELDS = {
    "planner": ("question, information", "plan"),
    "searcher": (
        "question, information, suggestions",
        "search_query, search_query_explanation, query_id, relevance, doc_id, is_relevant, is_relevant_explanation, "
        "change_search_query, change_search_query_explanation, new_search_query, end_search, end_search_explanation",
    ),
    "reasoner": ("question, information, aspect", "analysis"),
    "summarizer": ("question, information", "summary"),
    "validator": (
        "question, information, response",
        "extracted_criteria, criteria, criteria_explanation, is_response_valid, is_response_valid_feedback, "
        "is_groundedly_supported, is_groundedly_supported_feedback, is_correctly_answered, "
        "is_correctly_answered_feedback",
    ),
    "answerer": ("question, supporting information, plan, important information", "response"),
}
# What the coordinator is told, where it differs from the above.
OFFERED = FIELDS | {
    "searcher": ("question, information, suggestions", "found_information, documents"),
    "answerer": ("question, guidance, important_information", "response"),
    "reviser": ("question, suggestion", "response"),
    "finisher": ("finished", ""),
}
SYSTEMS = ("coordinator", *FIELDS)


def fill(slot: str, **values: str) -> str:
    return SYSTEM.prompts[slot].fill(values)


def names(fields: str) -> list[str]:
    return fields.split(", ") if fields else []


@pytest.mark.parametrize("agent", FIELDS)
def test_each_agents_prompt_names_its_fields(agent: str) -> None:
    prompt = Paper(Settings(), fill).system(agent)
    for fields in FIELDS[agent]:
        assert all(f'- "{field}": ' in prompt for field in names(fields))


@pytest.mark.parametrize("agent", AGENTS)
def test_the_coordinators_prompt_names_every_agent_with_its_fields(agent: str) -> None:
    prompt = Paper(Settings(), fill).system("coordinator")
    assert all(f'- "{field}": ' in prompt for field in ("agent", "input", "reason"))
    entry = prompt.partition(f"## {agent}\n")[2].partition("\n## ")[0]
    for fields in OFFERED[agent]:
        assert all(f'- "{field}": ' in entry for field in names(fields))


@pytest.mark.parametrize("style", [Paper, Brief])
def test_agents_that_are_not_offered_are_not_named(style: Any) -> None:
    made = style(Settings(agents=("searcher",)), fill)
    prompt = made.system("coordinator")
    assert all((name in prompt) == (name in ("searcher", "answerer", "finisher")) for name in AGENTS)
    assert "planner" not in str(json_schema(made.action_schema(made.offered)))


@pytest.mark.parametrize("style", [Paper, Brief])
def test_without_explanations_no_prompt_or_schema_asks_for_one(style: Any) -> None:
    made = style(Settings(explanations=False), fill)
    schemas = [
        made.action_schema(made.offered),
        made.query,
        made.review_schema(2, last=False),
        *(made.output_schema(a) for a in FIELDS if a != "searcher"),
    ]
    text = "".join(made.system(agent) for agent in SYSTEMS) + str([json_schema(schema) for schema in schemas])
    assert "explanation" not in text and '"reason"' not in text and "'reason'" not in text


@pytest.mark.model
def test_brief_prompts_are_short_in_smollm2s_tokens(smollm2: Path) -> None:
    chat = WrapperFormat.from_tokenizer(load_tokenizer(str(smollm2)))
    for explanations in (True, False):
        style = Brief(Settings(style="brief", explanations=explanations), fill)
        for agent in SYSTEMS:
            first = (*chat.before_system, *chat.encode(style.system(agent)), *chat.system_to_user)
            assert len(first) + len(chat.encode("Question: ")) + len(chat.user_to_assistant) <= 120


ADA = passage(1, "Ada Torrin built the harbour.", "Velm")
MILL = passage(2, "The mill is old and stands on a hill above the sea.")
SHELF = {"harbour": [ADA, MILL], "mill": [MILL, ADA]}


def brief(**settings: Any) -> dict[str, Any]:
    return {"name": "mrag", "settings": {"style": "brief", "explanations": False, **settings}}


async def test_the_brief_flow_fills_in_what_the_coordinator_need_not_say() -> None:
    agent = engine(
        [
            *[say(agent="planner"), say(plan=["find it", "say it"])],
            *[say(agent="searcher"), say(search_query="harbour")],
            say(relevance=[False, True], end_search=False, new_search_query="mill"),
            say(relevance=[False, True], end_search=True),
            *[say(agent="answerer"), say(answer="Ada")],
            say(agent="validator"),
            say(is_groundedly_supported=True, is_correctly_answered=False, is_correctly_answered_feedback="full name"),
            *[say(agent="reviser"), say(answer="Ada Torrin")],
            say(agent="finisher"),
        ]
    )
    shelf = Shelf(SHELF)
    trajectory = await play(brief(), agent, shelf)
    assert (trajectory.status, trajectory.answer, trajectory.passages) == ("finished", "Ada Torrin", (ADA, MILL))
    assert {call.parse for call in trajectory.model_calls} == {"ok"}
    assert shelf.asked == [("harbour", 2, 0), ("mill", 2, 0)]
    check_snapshot("mrag_brief", agent)


async def test_a_brief_agent_that_is_called_again_hears_only_what_is_new() -> None:
    agent = engine(
        [
            *[say(agent="searcher"), say(search_query="harbour"), say(relevance=[False, True], end_search=True)],
            *[say(agent="answerer"), say(answer="Ada")],
            *[say(agent="searcher"), say(search_query="mill"), say(relevance=[True, True], end_search=True)],
            *[say(agent="answerer"), say(answer="Ada Torrin"), say(agent="finisher")],
        ]
    )
    await play(brief(), agent, Shelf(SHELF))
    again = agent.calls[9].messages[-1]["content"]
    assert again == f"Document: {MILL.text}\nQuestion: Who built the harbour of Velm?"


async def test_brief_reviews_have_one_verdict_for_each_document_shown() -> None:
    agent = engine([say(agent="searcher"), say(search_query="harbour"), say(relevance=[True], end_search=True)])
    trajectory = await play(brief(), agent, Shelf(SHELF))
    assert trajectory.status == "unparsed" and "relevance" in trajectory.error


async def test_a_dry_brief_search_is_said_and_ends() -> None:
    dry = say(relevance=[], end_search=False, new_search_query="")
    agent = engine([say(agent="searcher"), say(search_query="x"), dry, say(agent="finisher")])
    trajectory = await play(brief(), agent)
    assert agent.calls[2].messages[-1]["content"] == "There are no more documents for this query."
    assert agent.calls[3].messages[-1]["content"] == "searcher: found nothing"
    assert [type(event) for event in trajectory.events].count(Note) == 2


async def test_the_last_turn_of_a_search_asks_for_no_other_query() -> None:
    found = [say(agent="searcher"), say(search_query="harbour"), say(relevance=[False, True], end_search=True)]
    agent = engine([*found, say(agent="answerer"), say(answer="Ada"), say(agent="finisher")])
    await play(brief(max_search_turns=1), agent, Shelf(SHELF))
    assert "new_search_query" not in json.dumps(agent.calls[2].params.schema)
