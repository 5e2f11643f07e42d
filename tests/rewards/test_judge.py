"""How the judge is asked: what it is shown, replies that are cut off, calls that are not served, reading a reply."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.errors import UserError
from ratchet.core.records import Question
from ratchet.inference.engine import EngineError
from ratchet.rewards.judge import AspectVerdict, JudgeError, cut_off, read_reply
from tests.helpers.reward_cases import Material, judge_it, judge_reply, material, scripted_judge, trajectory

QUESTION = Question(id="q1", text="Who built the harbour, and when?", reference="Ada Torrin built it. It was in 1204.")
OWN_NUGGET = Question(id="q1", text="Who?", nuggets=("Ada Torrin",))


def test_the_judge_sees_the_fields_of_the_figures(tmp_path: Path) -> None:
    engine = scripted_judge()
    judged = trajectory(answer="Ada Torrin built it.", documents=["Ada Torrin built it"])
    judge_it(tmp_path, engine, "correctness", QUESTION, judged, runs=1)
    judge_it(tmp_path, engine, "faithfulness", QUESTION, judged, runs=1)
    fields = [set(material(call.messages)) for call in engine.calls]
    match = {"question", "expected_output", "generated_output", "aspect"}
    support = {"question", "answer_aspects", "context"}
    assert fields == [{"question", "expected_output"}, match, match, {"question", "answer"}, support]
    schemas = [call.params.schema for call in engine.calls]
    assert isinstance(schemas[1], dict)
    assert schemas[1]["properties"]["score"]["enum"] == [-1, 0, 1, 2]


@pytest.mark.parametrize(
    ("max_tokens", "context", "limits", "read"),
    [
        (16_384, 32_000, [16_384, 16_384], True),
        (16_384, 4_000, ["room", "room"], True),  # no more than the prompt leaves
        (500, 32_000, [500, "room", 500], True),  # cut off once: with all that there is
        (500, 1_500, [500, "room"], False),
        (16_384, 1_500, ["room"], False),  # nothing more to ask with
    ],
)
def test_a_cut_off_reply_is_asked_for_again_with_all_that_the_context_has(
    tmp_path: Path, max_tokens: int, context: int, limits: list[Any], read: bool
) -> None:
    """A list of 25 claims is longer than 500 tokens, and its verdicts are not."""
    facts = [f"Fact {number} of the harbour" for number in range(25)]

    def reply(given: Material) -> str:
        if "context" in given:
            return json.dumps({"scores_list": [{"id": number, "score": 1} for number in range(1, 26)]})
        claims = [{"id": n, "aspect": fact, "explanation": "so", "evidence": fact} for n, fact in enumerate(facts, 1)]
        return json.dumps({"answer_aspects": claims})

    engine = scripted_judge(reply, max_context=context)
    judged = trajectory(answer=". ".join(facts), documents=["none"])
    score = judge_it(tmp_path, engine, "faithfulness", QUESTION, judged, runs=1, max_tokens=max_tokens)
    rooms = [context - len(call.prompt) for call in engine.calls]
    asked_with = [call.params.max_tokens for call in engine.calls]
    assert asked_with == [room if limit == "room" else limit for limit, room in zip(limits, rooms, strict=True)]
    prompts = [verdict["tokens"][0] for verdict in score.verdicts if "tokens" in verdict]
    assert sum(prompts) == sum(len(call.prompt) for call in engine.calls), "the first reply's tokens are counted too"
    assert (score.value, score.unparsed, cut_off(score.verdicts)) == (
        (1.0, 0, (0, int(max_tokens == 500))) if read else (None, 1, (1, 0))
    )


def test_a_cut_off_reply_stays_where_the_judge_gives_no_more(tmp_path: Path) -> None:
    """Such as a service whose limit of new tokens is below its context."""
    calls = iter(range(9))

    def reply(given: Material) -> str:
        if next(calls) >= 2:  # those that ask again
            raise EngineError("400: max_tokens is too large")
        return judge_reply(given).replace("as stated", "as stated " * 300)

    judged = trajectory(answer="Ada Torrin built it")
    score = judge_it(tmp_path, scripted_judge(reply), "correctness", OWN_NUGGET, judged, max_tokens=500)
    assert (score.value, score.unparsed, cut_off(score.verdicts)) == (None, 2, (2, 0))


def test_a_call_that_was_not_served_fails_the_score_and_only_it_is_asked_again(tmp_path: Path) -> None:
    def reply(given: Material) -> str:
        if given.get("aspect", {}).get("aspect") == "It was in 1204":
            raise EngineError("503")
        return judge_reply(given)

    first, second = scripted_judge(reply), scripted_judge()
    judged = trajectory(answer="Ada Torrin built it")
    with pytest.raises(JudgeError, match="2 of 4 judge calls failed, such as: 503"):
        judge_it(tmp_path, first, "correctness", QUESTION, judged)
    score = judge_it(tmp_path, second, "correctness", QUESTION, judged)
    assert score.value == pytest.approx((1 + 1 / 3) / 2)
    assert {material(call.messages)["aspect"]["aspect"] for call in second.calls} == {"It was in 1204"}
    assert len(second.calls) == 2


def test_a_dead_judge_is_given_up(tmp_path: Path) -> None:
    def reply(given: Material) -> str:
        raise EngineError("connection refused")

    engine = scripted_judge(reply)
    question = QUESTION.model_copy(update={"nuggets": tuple(f"fact {i}" for i in range(100))})
    with pytest.raises(UserError, match=r"20 times in a row.*connection refused"):
        judge_it(tmp_path, engine, "correctness", question, trajectory())
    assert len(engine.calls) < 30


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"score": 2, "rationale": "fine"}', 2),
        ('```json\n{"score": -1, "rationale": "wrong"}\n```', -1),
        ('```json\n{"score": 1, "rationale": ""}\n```\n```json\n{"score": 2, "rationale": ""}\n```', None),
        ('{"score": -1} because it said {"score": 2}', None),
        ('{"score": 2} because it said {"score": "2", "rationale": "so"}', 2),
        ('{"aspect": "a"}\n{"score": 3}\n{"score": 1}', 1),
        ('{"score": 3, "rationale": ""}', None),
        ('<think>{"score": 1, "rationale": ""}</think>{"score": 2, "rationale": ""}', 2),
        ("```\n{'score': 2,}\n```", 2),
        ('{"score": 1.5, "rationale": ""}', None),
        ('{"score": 2, "rationale": "cut o', None),
        ("", None),
    ],
)
def test_reading_a_verdict(text: str, score: int | None) -> None:
    verdict = read_reply(text, AspectVerdict)
    assert (verdict.score if verdict else None) == score


@pytest.mark.parametrize("verdicts", ["reason_first", "score_first"])
def test_a_verdict_has_its_reason_first_or_its_score_as_in_the_figures(tmp_path: Path, verdicts: str) -> None:
    order = ["rationale", "score"] if verdicts == "reason_first" else ["score", "rationale"]
    engine = scripted_judge()
    judged = trajectory(answer="Ada Torrin built it", documents=["Ada Torrin built it"])
    for name in ("correctness", "faithfulness", "precision", "relevance"):
        judge_it(tmp_path / name, engine, name, QUESTION, judged, runs=1, verdicts=verdicts)
    asked = [(str(call.messages[-1]), json.dumps(call.params.schema)) for call in engine.calls]
    scoring = [(text, schema) for text, schema in asked if '"score"' in schema]
    assert len(scoring) >= 5
    for text, schema in scoring:
        for said in (text.replace("\\", ""), schema):
            assert sorted(order, key=lambda field: said.index(f'"{field}"')) == order
