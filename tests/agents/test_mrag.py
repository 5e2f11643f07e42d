"""mRAG where no transcript says it (transcripts/): every field of the paper is asked for, roles, budget and lengths."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.agents.core.output import json_schema
from ratchet.agents.mrag import SYSTEM
from ratchet.agents.mrag.paper import Brief, Paper
from ratchet.agents.mrag.state import AGENTS, Settings
from ratchet.core.errors import UserError
from ratchet.inference.chat_formats import WrapperFormat
from ratchet.inference.tokenizer import load_tokenizer
from tests.helpers.playing import Shelf, act, engine, passage, play, say

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


async def test_the_last_turn_of_a_search_asks_for_no_other_query() -> None:
    found = [say(agent="searcher"), say(search_query="harbour"), say(relevance=[False, True], end_search=True)]
    agent = engine([*found, say(agent="answerer"), say(answer="Ada"), say(agent="finisher")])
    await play(brief(max_search_turns=1), agent, Shelf(SHELF))
    assert "new_search_query" not in json.dumps(agent.calls[2].params.schema)


WRITING = [act("answerer"), say(response="Ada"), act("reviser"), say(response="Ada Torrin"), act("finisher")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "words"), [("any", ""), ("concise", "at most 100 words"), ("long", "every aspect of the question")]
)
@pytest.mark.parametrize("system", ["mrag", "no_retrieval", "vanilla_rag"])
async def test_a_response_is_asked_for_with_a_length(system: str, length: str, words: str) -> None:
    """The paper: asking for longer responses alone raised nugget recall."""
    agent = engine(list(WRITING) if system == "mrag" else [say(response="Ada")])
    await play({"name": system, "settings": {"length": length}}, agent, Shelf(SHELF))
    shown = [call.messages for call in agent.calls]
    writers = [messages for messages in shown if messages[0]["content"].startswith(("You write", "You are"))]
    asked = " ".join(message["content"] for message in writers[-1] if message["role"] != "assistant")
    assert asked.count(words or "100 words") == (0 if not words else 2 if system == "mrag" else 1), "reviser too"
    others = [call.messages for call in agent.calls if call.messages not in writers]
    assert not words or words not in str(others)


async def test_the_default_budget_is_thirty_calls() -> None:
    def planning(_: str, __: Any, messages: Any) -> str:
        return act("planner") if messages[0]["content"].startswith("You lead") else say(plan=[])

    trajectory = await play({"name": "mrag"}, engine(planning))
    assert trajectory.status == "out_of_budget" and trajectory.answer == ""
    assert trajectory.error == "coordinator: stopped after 30 calls (max_calls)"
    assert [call.role for call in trajectory.model_calls] == ["coordinator", "planner"] * 30


async def test_an_agent_that_begins_anew_gets_all_that_was_found_again() -> None:
    said = [
        say(agent="searcher"), say(search_query="harbour"), say(relevance=[True, False], end_search=True),
        say(agent="reasoner"), say(analysis=["a"]), say(agent="reasoner"), say(analysis=["b"]), say(agent="planner"),
    ]  # fmt: skip
    for conversations, times in (("kept", 1), ("fresh", 2)):
        agent = engine(list(said))
        await play(brief(conversations=conversations), agent, Shelf(SHELF))
        asked = [c.messages[-1]["content"] for c in agent.calls if "Think" in c.messages[0]["content"]]
        assert sum("The mill is old" in message for message in asked) == times


async def test_frozen_writers_play_the_base_model_and_share_it() -> None:
    agent, writer = engine([act("answerer"), act("reviser"), act("finisher")]), engine([say(response="a")] * 2)
    frozen = {"model": "writer", "trainable": False}
    config = {"name": "mrag", "roles": {"answerer": frozen, "reviser": frozen | {"max_tokens": 50}}}
    trajectory = await play(config, {"agent": agent, "writer": writer})
    assert [(c.adapter, c.params.max_tokens) for c in writer.calls] == [(None, 4096), (None, 50)]
    assert [c.trainable for c in trajectory.conversations] == [True, False]
    with pytest.raises(UserError, match="answerer and reviser"):
        await play({"name": "mrag", "roles": {"answerer": {"trainable": False}}}, engine([]))
