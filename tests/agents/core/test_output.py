"""What a model said, read as JSON: which replies count, what is tolerated, and what is no reply at all."""

import json
import time
from typing import Any, Literal

import pytest
from pydantic import Field

from ratchet.agents.core.output import (
    MAX_BOUNDED_TOKENS,
    AnyInteger,
    AnyText,
    AnyTexts,
    Malformed,
    at_most,
    grammar,
    json_schema,
    read_output,
)
from ratchet.agents.core.tools import Answer, Tools
from ratchet.agents.mermaid import Decomposition
from ratchet.agents.mrag.schemas import Fields, Review, full_action, variant
from ratchet.core.config import RoleConfig, SystemConfig
from ratchet.core.records import Trajectory
from ratchet.training.rows import build_rows
from tests.helpers.playing import engine, run

ANY_OBJECT = {"type": "object"}


class Score(Fields):
    """A judge's reply."""

    score: Literal[-1, 0, 1, 2, 3, 4]
    rationale: str


class Shelf(Fields):
    """Fields of every type."""

    doc_id: int = 0
    share: float = 0.0
    good: bool = False
    name: str = ""
    parts: tuple[Score, ...] = ()


def parse_output(text: str, schema: Any) -> Any:
    return read_output(text, schema).value


SCORED = '{"score": 4, "rationale": ""}'
DRAFT = '{"score": 1, "rationale": ""}'


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        (SCORED, ()),
        (f"\n{SCORED}\n", ()),
        (f"```json\n{SCORED}\n```", ()),
        (f"Here: ```json\n{SCORED}\n```\nThat is all.", ()),
        (f"```json\n{DRAFT}\n```\n```json\n{SCORED}\n```", ()),
        (f"<think>{DRAFT}</think>{SCORED}", ()),
        (f"<think>```json\n{DRAFT}\n```\n</think>\n\n```json\n{SCORED}\n```", ()),
        (f"{DRAFT}</think>{SCORED}", ()),
        (f"```\n{SCORED}\n```", ("fence",)),
        (f"```python\n{SCORED}\n```", ("fence",)),
        (f"```json\n{SCORED}", ("fence",)),
        (f"{DRAFT}\n{SCORED}", ("text",)),
        (f"First {DRAFT}, no: {SCORED}.", ("text",)),
        (f"The set {{1, 2}} and {{x, so {SCORED}", ("text",)),
        (f'{SCORED}\n{{"score": ', ("text",)),
        ('{"score": 4, "rationale": "",}', ("syntax",)),
        ("{'score': 4, rationale: 'it\\'s', /* so */}", ("syntax",)),
        ('{"score": 4, "rationale": "a\nb"}', ("syntax",)),
        ('{"score": "4", "rationale": ""}', ("type",)),
        ('{"score": 4}', ("explanation",)),
        ('{"score": 4, "rationale": null}', ("explanation", "null")),
        ('{"score": 4, "rationale": "", "id": 7}', ("unknown_field",)),
        ("```\n{'score': '4',}\n```", ("explanation", "fence", "syntax", "type")),
    ],
)
def test_the_last_object_counts_and_what_was_tolerated_is_named(text: str, repairs: tuple[str, ...]) -> None:
    found = read_output(text, Score)
    assert (found.value.score, found.repairs) == (4, repairs)
    if repairs:
        with pytest.raises(Malformed):
            read_output(text, Score, json_schema(Score))
    else:
        assert read_output(text, Score, json_schema(Score)).value == found.value


@pytest.mark.parametrize("is_constrained", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "", "4", "[4]", "{}", "The score is 4.", "<think>" + SCORED,
        '{"score": NaN, "rationale": ""}', '{"score": Infinity, "rationale": ""}', '{"score": 1e999, "rationale": ""}',
        "{'score': NaN}", "{'score': +Infinity}", "{'score': 1e999}", "{score: 0x" + "f" * 5000 + "}",
        '{"score": 1' + "0" * 400 + "}",
        '{"score": 4, "rationale": "cut o', '{"score": "good"}', '{"score": 1.5}', '{"score": null}',
        '{"score": 9}', '{"rationale": ""}', '{"a": {"score": 4, "rationale": ""} "b": 1}',
        SCORED + '{"score": NaN, "rationale": ""}',
    ],
)  # fmt: skip
def test_what_is_no_such_object_is_malformed(text: str, is_constrained: bool) -> None:
    with pytest.raises(Malformed):
        read_output(text, Score, json_schema(Score) if is_constrained else None)
    if "NaN" in text or "999" in text or len(text) > 400:  # whatever the schema says of numbers
        with pytest.raises(Malformed):
            read_output(text, ANY_OBJECT, ANY_OBJECT if is_constrained else None)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"doc_id": "1"}, {"doc_id": 1}),
        ({"doc_id": " -3 "}, {"doc_id": -3}),
        ({"doc_id": 2.0}, {"doc_id": 2}),
        ({"doc_id": None}, {}),
        ({"share": "0.5"}, {"share": 0.5}),
        ({"good": "True"}, {"good": True}),
        ({"name": 1912}, {"name": "1912"}),
        ({"parts": [{"score": "2"}]}, {"parts": [{"score": 2, "rationale": ""}]}),
    ],
)
def test_a_value_of_another_type_counts_where_it_can_mean_one_thing(given: Any, read: Any) -> None:
    assert parse_output(json.dumps(given), Shelf) == Shelf(**read)
    assert parse_output(json.dumps(given), json_schema(Shelf)) == read


@pytest.mark.parametrize("given", [{"doc_id": "one"}, {"doc_id": 1.5}, {"good": 1}, {"good": "yes"}, {"name": ["a"]}])
def test_a_value_that_can_mean_several_things_is_malformed(given: Any) -> None:
    with pytest.raises(Malformed):
        parse_output(json.dumps(given), Shelf)


class Loose(Fields):
    """Fields whose type their source leaves open."""

    text: AnyText = ""
    texts: AnyTexts = Field([])
    number: AnyInteger = 0


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"text": None}, {}),  # left out
        ({"text": ["a", "b"]}, {"text": "a\nb"}),
        ({"text": {"a": [1, "ä"]}}, {"text": '{"a": [1, "ä"]}'}),
        ({"text": True}, {"text": "true"}),
        ({"texts": "a"}, {"texts": ["a"]}),
        ({"texts": {"a": 1}}, {"texts": ['{"a": 1}']}),
        ({"texts": [{"a": 1}, ["b", "c"], 2]}, {"texts": ['{"a": 1}', "b\nc", "2"]}),
        ({"number": "the first"}, {"number": None}),
        ({"number": True}, {"number": None}),
        ({"number": " 7 "}, {"number": 7}),
    ],
)
def test_where_a_source_names_no_type_any_value_counts_and_is_a_repair(given: Any, read: Any) -> None:
    found = read_output(json.dumps(given), Loose)
    assert found.value == Loose(**read) and len(found.repairs) == 1
    with pytest.raises(Malformed):
        read_output(json.dumps(given), Loose, json_schema(Loose))


def test_a_name_in_other_capitals_is_that_name() -> None:
    action = {"agent": " Answerer", "input": {"question": "", "guidance": None, "important_information": ""}}
    found = read_output(json.dumps(action), full_action(("answerer", "finisher"), False))
    assert (found.value.root.agent, found.value.root.input.guidance, found.repairs) == (
        "answerer",
        "",
        ("case", "type"),
    )
    labels = {"type": "object", "properties": {"label": {"enum": ["True", "TRUE", "No"]}}}
    assert parse_output('{"label": "no"}', labels) == {"label": "No"}
    with pytest.raises(Malformed):
        parse_output('{"label": "true"}', labels)


@pytest.mark.parametrize("reason", [{}, {"reason": None}, {"reason": "The response is complete."}])
@pytest.mark.parametrize("explanations", [True, False])
def test_mrags_last_action_counts_with_and_without_a_reason(explanations: bool, reason: dict[str, Any]) -> None:
    action = {"agent": "finisher", "input": {"finished": True}} | reason
    read = parse_output(json.dumps(action), full_action(("planner", "finisher"), explanations)).root
    assert (read.agent, read.input.finished) == ("finisher", True)


def test_mrags_searcher_may_leave_out_the_query_that_it_does_not_need() -> None:
    page = {"relevance": [{"doc_id": "7", "is_relevant": True}], "change_search_query": False, "end_search": True}
    for more in ({}, {"new_search_query": None, "query_id": "0"}):
        read = parse_output(json.dumps(page | more), variant(Review, True))
        assert (read.relevance[0].doc_id, read.new_search_query) == (7, "")


# Bounds of lengths

LONG = Decomposition.model_validate(
    {
        "triplets": [{"subject": "s" * 200, "relation": "r", "object": "o", "attributions": list("abcde")}] * 7,
        "keywords": list("abcdefgh"),
    }
)


def test_no_bound_of_a_grammar_refuses_what_a_model_wrote_freely() -> None:
    assert read_output(LONG.model_dump_json(), Decomposition).value == LONG
    assert "max" not in json.dumps(grammar(Decomposition, MAX_BOUNDED_TOKENS + 1))


def test_where_a_grammar_needs_bounds_what_is_beyond_is_dropped_and_counted() -> None:
    bounded = grammar(Decomposition, MAX_BOUNDED_TOKENS)
    found = read_output(LONG.model_dump_json(), Decomposition, constrained=bounded)
    cut = found.value.triplets[0]
    assert (len(found.value.triplets), len(cut.subject), len(cut.attributions)) == (5, 80, 3)
    assert found.repairs == ("length",)
    with pytest.raises(Malformed):  # a grammar gives JSON: nothing else is tolerated there
        read_output(LONG.model_dump_json()[:-1] + ",}", Decomposition, constrained=bounded)


def test_a_list_of_exactly_so_many_keeps_its_bounds() -> None:
    exact = {"type": "object", "properties": {"flags": {"type": "array", "minItems": 2, "maxItems": 2}}}
    assert grammar(exact, 10_000) == exact
    with pytest.raises(Malformed):
        parse_output('{"flags": [1, 2, 3]}', exact)


# In a trajectory


class City(Fields):
    """An action with a bound."""

    name: str = at_most(characters=3)
    reason: str


async def ask_city(tools: Tools) -> Answer:
    return Answer((await tools.ask(tools.dialogue("one"), "Which city?", City)).name)


async def ask_freely(tools: Tools) -> Answer:
    return Answer(await tools.ask(tools.dialogue("one"), "Which city?"))


FREELY = SystemConfig(malformed="give_up")


async def test_a_repaired_action_is_counted_and_its_sampled_tokens_are_learnt() -> None:
    said = "<think>{'name': 'Tor'}</think>```\n{'name': 'Velm',}\n```"
    agent = engine([said])
    trajectory = await run(ask_city, agent, FREELY)
    [call] = trajectory.model_calls
    assert (trajectory.answer, call.parse, call.text) == ("Velm", "ok", said)
    assert call.repairs == ("explanation", "fence", "syntax")
    [row] = build_rows(trajectory, 1000)[0]
    learnt = [token for token, bit in zip(row.ids, row.loss_mask, strict=True) if bit]
    assert learnt == [*agent.format.encode(said), agent.format.end_of_turn]
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    refused = await run(ask_city, engine([said]), SystemConfig())
    assert (refused.status, refused.model_calls[0].repairs) == ("unparsed", ()), "decoding is constrained"


@pytest.mark.parametrize(("max_tokens", "name", "repairs"), [(4096, "Velm", ()), (128, "Vel", ("length",))])
async def test_only_a_short_reply_has_a_grammar_with_bounds(
    max_tokens: int, name: str, repairs: tuple[str, ...]
) -> None:
    config = SystemConfig(roles={"one": RoleConfig(max_tokens=max_tokens)})
    agent = engine(['{"name": "Velm", "reason": ""}'])
    trajectory = await run(ask_city, agent, config)
    assert (trajectory.answer, trajectory.model_calls[0].repairs) == (name, repairs)
    assert ("maxLength" in json.dumps(agent.calls[0].params.schema)) == bool(repairs)


async def test_thoughts_are_no_answer_and_stay_in_the_record() -> None:
    said = "<think>The answer is: Tor</think>\nVelm"
    trajectory = await run(ask_freely, engine([said]), FREELY)
    assert (trajectory.answer, trajectory.model_calls[0].text) == ("Velm", said)
    unfinished = await run(ask_freely, engine(["<think>The answer is: Tor"]), FREELY)
    [call] = unfinished.model_calls
    assert (unfinished.answer, call.parse, call.error) == ("", "malformed", "there are thoughts and no answer")


# Hostile replies


def test_half_a_surrogate_pair_in_an_action_becomes_a_question_mark() -> None:
    assert parse_output('{"query": "tide \\ud800"}', ANY_OBJECT) == {"query": "tide ?"}


@pytest.mark.parametrize("levels", [300, 100_000])
def test_an_action_that_is_too_deep_to_be_recorded_is_malformed(levels: int) -> None:
    with pytest.raises(Malformed, match="levels deep"):
        parse_output('{"arguments": ' + "[" * levels + "]" * levels + "}", ANY_OBJECT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["{", "{'a' ", '{"a" 1}', "{a:[", "{'a':'}", "{//", "{/*", '{"\\"', "{'\\'", "<think>"]
)
def test_a_long_reply_in_no_form_is_given_up_soon(part: str) -> None:
    started = time.process_time()
    with pytest.raises(Malformed):
        parse_output(part * (100_000 // len(part)), Score)
    parse_output(f"```{' ' * 100_000}! {SCORED}", Score)
    assert time.process_time() - started < 30
