"""Rules that narrow actions: a schema keeps what a rule allows, rules do what they say, and a plug-in sees it."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ratchet.agents.core.exploration import (
    CURRICULUM,
    ChoicePoint,
    Lookup,
    explored,
    load_rules,
    narrowed,
)
from ratchet.agents.core.output import json_schema
from ratchet.agents.fire import SYSTEM as FIRE
from ratchet.agents.fire import schema as fire_schema
from ratchet.agents.mrag import SYSTEM
from ratchet.agents.mrag.paper import Brief, Paper
from ratchet.agents.mrag.schemas import brief_action, brief_review
from ratchet.agents.mrag.state import Settings
from ratchet.core.errors import UserError
from ratchet.core.records import Question
from ratchet.inference.schemas import schema_grammar
from ratchet.questions.labels import FEVER
from tests.helpers.playing import passage

QUESTION = Question(
    id="q", text="Where was the person who built the Oarabel born?", answers=("Grisket",), gold_ids=("d1", "d2")
)
GOLD = [CURRICULUM["gold_documents"]]
FERRY = passage(1, "The Oarabel is a ferry. It was built by Wilka Brandeleck.", "Oarabel")
PERSON = passage(2, "Wilka Brandeleck was born in Grisket.", "Wilka Brandeleck")


def point(schema: Any, *searches: Lookup, question: Question = QUESTION, **changes: Any) -> ChoicePoint:
    given: dict[str, Any] = {"role": "searcher", "turn": 0, "gold": (), "fields": SYSTEM.searches} | changes
    return ChoicePoint(schema=json_schema(schema), question=question, searches=searches, **given)


def search(query: str, *found: Any) -> Lookup:
    return Lookup(query, found)


def allows(schema: dict[str, Any] | None, **value: Any) -> bool:
    assert schema is not None
    schema_grammar(json.dumps(schema))  # a grammar can be made of it
    return Draft202012Validator(schema).is_valid(value)


def choose(rule: str, at: ChoicePoint) -> dict[str, Any] | None:
    return explored(load_rules([rule]), at)


def test_a_narrowed_schema_allows_a_part_of_what_the_schema_allows() -> None:
    schema = json_schema(brief_review(2, last=False))
    made = narrowed(schema, {"end_search": [False], "new_search_query": ["Pim", "Jil"], "unknown": [1]})
    assert allows(made, relevance=[True, False], end_search=False, new_search_query="Jil")
    for other in ({"end_search": True}, {"end_search": False, "new_search_query": "Tollen"}):
        assert not allows(made, relevance=[True, False], **other)
    assert schema == json_schema(brief_review(2, last=False)), "the system's own schema is as it was"
    assert narrowed(json_schema(brief_review(2, last=True)), {"end_search": [False]}) is None
    lists = narrowed(schema, {"relevance": [True]})
    assert allows(lists, relevance=[True, True], end_search=True)
    assert not allows(lists, relevance=[True, False], end_search=True)
    optional = narrowed(
        {"type": "object", "properties": {"query": {"type": "string"}, "k": {"type": "integer"}}}, {"query": ["Pim"]}
    )
    assert allows(optional, query="Pim") and not allows(optional, k=1), "it cannot leave the query out"


@pytest.mark.parametrize("style", [Paper, Brief])
def test_search_again_searches_first_and_goes_on_once(style: Any) -> None:
    made = style(Settings(), lambda *_, **__: "")
    action = choose("search_again", point(made.action_schema(("planner", "searcher", "answerer"))))
    agents = {name for name in ("planner", "searcher", "answerer") if f'"{name}"' in json.dumps(action)}
    assert agents == {"searcher"}
    first = choose("search_again", point(made.review_schema(2, last=False), search("Oarabel", FERRY)))
    assert '"end_search": {"enum": [false]}' in json.dumps(first)
    again = point(made.review_schema(2, last=False), search("Oarabel", FERRY), search("Wilka", PERSON))
    assert choose("search_again", again) is None, "the second review is the model's own"


def test_queries_are_names_of_the_question_and_then_of_what_was_found() -> None:
    query = json_schema(Brief(Settings(), lambda *_, **__: "").query)
    assert allows(choose("quote_names", point(query)), search_query="Oarabel")
    assert not allows(choose("quote_names", point(query)), search_query="Grisket")
    found = choose("quote_names", point(brief_review(1, last=False), search("Oarabel", FERRY)))
    assert allows(found, relevance=[True], end_search=False, new_search_query="Wilka Brandeleck")
    assert allows(found, relevance=[True], end_search=True), "it says nothing of when to stop"
    assert not allows(found, relevance=[True], end_search=False, new_search_query="Oarabel"), "that was asked"
    both = Question(id="q", text="Which is longer, the Bowlegger or the Jostlebeam?")
    other = choose("quote_names", point(brief_review(1, last=False), search("Bowlegger", FERRY), question=both))
    assert allows(other, relevance=[True], end_search=False, new_search_query="Jostlebeam")
    assert choose("quote_names", point(query, question=Question(id="q", text="谁建造了港口？"))) is None


def test_the_first_query_is_the_question_and_later_ones_are_free() -> None:
    schema = brief_action(("searcher", "answerer"), explanations=False)
    assert allows(choose("quote_question", point(schema)), agent="searcher")
    assert not allows(choose("quote_question", point(schema)), agent="answerer")
    decision: dict[str, Any] = {"schema": fire_schema(FEVER, last=False), "fields": FIRE.searches}
    first = choose("quote_question", point(**decision))
    assert allows(first, reasoning="", search_query=QUESTION.text)
    assert not allows(first, reasoning="", search_query="Oarabel")
    assert not allows(first, reasoning="", final_answer="SUPPORTS")
    later = point(decision["schema"], search(QUESTION.text, FERRY), fields=FIRE.searches)
    assert choose("quote_question", later) is None


def test_a_curriculum_finds_the_gold_documents_by_their_titles_and_then_stops() -> None:
    gold: dict[str, Any] = {"gold": (FERRY, PERSON)}
    review = brief_review(1, last=False)
    first = explored(GOLD, point(Brief(Settings(), lambda *_, **__: "").query, **gold))
    assert allows(first, search_query="Oarabel") and not allows(first, search_query="Wilka Brandeleck")
    second = explored(GOLD, point(review, search("Oarabel", FERRY), **gold))
    assert allows(second, relevance=[True], end_search=False, new_search_query="Wilka Brandeleck")
    assert not allows(second, relevance=[False], end_search=False, new_search_query="Wilka Brandeleck")
    end = explored(GOLD, point(review, search("Oarabel", FERRY), search("Wilka Brandeleck"), **gold))
    assert allows(end, relevance=[True], end_search=True), "a title that does not find its document is tried once"
    action = explored(GOLD, point(brief_action(("searcher", "answerer"), False), **gold))
    assert allows(action, agent="searcher") and not allows(action, agent="answerer")


def test_an_action_may_be_known_by_the_fields_that_it_has() -> None:
    """FIRE's decision is a query or an answer, and MERMAID's a call or a verdict."""
    fire = point(
        fire_schema(FEVER, last=False), fields=FIRE.searches, question=Question(id="c", text="Ada built Velm.")
    )
    made = explored(load_rules(["search_again", "quote_names"]), fire)
    assert allows(made, reasoning="so", search_query="Velm")
    assert not allows(made, reasoning="so", final_answer="SUPPORTS")
    assert choose("search_again", point(fire_schema(FEVER, last=True), fields=FIRE.searches)) is None


def test_a_rule_of_ones_own_sees_the_point_and_narrows_it(tmp_path: Path) -> None:
    file = tmp_path / "rule.py"
    file.write_text(
        "from ratchet.agents.core.exploration import narrowed\n"
        "def narrow(point):\n"
        "    assert (point.role, point.turn, point.question.gold_ids) == ('searcher', 1, ('d1', 'd2'))\n"
        "    return narrowed(point.schema, {'end_search': [not point.searches]})\n"
    )
    rules = load_rules([str(file)])
    assert rules[0].name.startswith("rule-") and not rules[0].needs_fields
    made = explored(rules, point(brief_review(1, last=False), turn=1, fields=None))
    assert not allows(made, relevance=[True], end_search=False, new_search_query="x")
    with pytest.raises(UserError, match=r"rules: there is no rule 'search_agian' \(did you mean 'search_again'\?\)"):
        load_rules(["search_agian"])
