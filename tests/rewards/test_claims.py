"""Faithfulness (algorithm 4) and precision with a judge played by a script."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.agents.core.output import json_schema
from ratchet.core.records import Question
from ratchet.rewards.builtin.claims import AnswerAspects, Claim, ClaimVerdicts, claim_scores
from ratchet.rewards.judge import AspectVerdict, read_reply
from tests.helpers.reward_cases import Material, judge_it, judge_reply, material, scripted_judge, trajectory

QUESTION = Question(id="q1", text="Who built the harbour, and when?", reference="Ada Torrin built it. It was in 1204.")


def test_faithfulness_is_the_mean_of_normalised_claim_scores(tmp_path: Path) -> None:
    engine = scripted_judge()
    judged = trajectory(answer="Velm has a harbour. It is deep. It is old.", documents=["Velm has a harbour, they say"])
    score = judge_it(tmp_path, engine, "faithfulness", QUESTION, judged)
    assert score.value == pytest.approx(1 / 3)
    assert len(engine.calls) == 2 * 2  # claims, then one call for all of them, in each run
    assert [verdict["scores"] for verdict in score.verdicts if verdict["part"] == "support"] == [[1, -1, -1]] * 2


def test_faithfulness_averages_runs_and_leaves_unreadable_ones_out(tmp_path: Path) -> None:
    replies = iter(["nonsense", '{"scores_list": [{"id": 1, "score": 0, "rationale": ""}]}'])

    def reply(given: Material) -> str:
        if "context" not in given:
            return judge_reply(given)
        return next(replies, judge_reply(given))

    judged = trajectory(answer="Velm has a harbour. It is deep.", documents=["Velm has a harbour. It is deep."])
    score = judge_it(tmp_path, scripted_judge(reply), "faithfulness", QUESTION, judged, runs=3)
    # Run 1 unreadable; run 2 scores one of two claims alone; run 3 both with 1.
    assert (score.value, score.unparsed) == (1.0, 2)


def test_of_a_label_faithfulness_is_that_of_its_reasons(tmp_path: Path) -> None:
    """A label alone claims nothing that documents could support (records.Trajectory.response)."""
    verdict = trajectory(answer="SUPPORTS", documents=["Velm has a harbour, they say"])
    judged = verdict.model_copy(update={"explanation": "Velm has a harbour. It is deep."})
    engine = scripted_judge()
    score = judge_it(tmp_path, engine, "faithfulness", QUESTION, judged)
    assert score.value == 0.5
    precise = scripted_judge()
    judge_it(tmp_path / "b", precise, "precision", QUESTION, judged, score)
    assert {m["answer"] for call in precise.calls if "answer" in (m := material(call.messages))} == {"SUPPORTS"}


@pytest.mark.parametrize(("omitted", "value"), [("unreadable", None), ("neutral", (1.0 + 0.5) / 2)])
def test_a_reply_that_omits_a_claim_is_unreadable_or_has_it_neutral(
    tmp_path: Path, omitted: str, value: float | None
) -> None:
    def reply(given: Material) -> str:
        return '{"scores_list": [{"id": 1, "score": 1, "rationale": ""}]}' if "context" in given else judge_reply(given)

    judged = trajectory(answer="Velm has a harbour. It is deep.", documents=["Velm has a harbour."])
    score = judge_it(tmp_path, scripted_judge(reply), "faithfulness", QUESTION, judged, omitted_claims=omitted)
    assert (score.value, score.unparsed) == (value, 2), "it is counted in either case"


def test_claims_drawn_once_serve_every_run(tmp_path: Path) -> None:
    engine = scripted_judge()
    judged = trajectory(answer="Velm has a harbour. It is deep.", documents=["Velm has a harbour, they say"])
    settings: dict[str, Any] = {"extracted": "once", "extraction_temperature": 0.0}
    score = judge_it(tmp_path, engine, "faithfulness", QUESTION, judged, **settings)
    assert score.value == 0.5
    assert [call.params.temperature for call in engine.calls] == [0.0, 0.5, 0.5]
    reused = scripted_judge()
    judge_it(tmp_path / "b", reused, "precision", QUESTION, judged, score, **settings)
    assert len(reused.calls) == 2


@pytest.mark.parametrize(
    ("given", "scores", "omitting"),
    [
        ([(1, 1), (2, -1), (3, -1)], [1, -1, -1], None),
        ([(3, -1), (1, 1), (2, 0)], [1, 0, -1], None),  # in another order
        ([(0, 1), (1, -1), (2, -1)], [1, -1, -1], None),  # from 0
        ([(11, 1), (12, 0), (13, -1)], None, None),  # neither these ids nor places
        ([(2, 1), (3, 0), (4, -1)], None, None),
        ([(1, 1), (1, -1), (2, 0), (2, 0), (3, 1)], [None, 0, 1], None),  # contradicted, said twice
        ([(0, 1), (2, 0), (1, -1)], None, None),  # nor in their order
        ([(0, 1), (1, -1)], None, None),
        ([(1, 1), (2, -1)], None, [1, -1, None]),
        ([], None, [None, None, None]),
        ([(1, 1), (2, -1), (3, 0), (4, 0)], None, None),
        ([(1, 1), (2, "high"), (3, 7)], [1, None, None], None),
        ([("1", "1"), (2, " -1 "), (3, 0.0)], [1, -1, 0], None),
        ([("c1", 1), ("c3", -1), ("c2", 0)], [1, 0, -1], None),
        ([("claim 1", 1), ("claim 2", 0), ("claim 3", 0)], [1, 0, 0], None),
    ],
)
def test_scores_belong_to_the_claims_that_a_reply_numbers(
    given: list[tuple[Any, Any]], scores: list[int | None] | None, omitting: list[int | None] | None
) -> None:
    claims = [Claim(id=number, aspect="a", explanation="", evidence="") for number in (1, 2, 3)]
    reply = read_reply(json.dumps({"scores_list": [{"id": i, "score": s} for i, s in given]}), ClaimVerdicts)
    assert reply is not None, "no score and no missing rationale makes the others unreadable"
    assert claim_scores(claims, reply) == scores
    assert claim_scores(claims, reply, may_omit=True) == (scores or omitting)


def test_decoding_is_held_to_what_a_tolerant_reader_does_without() -> None:
    """A score out of scale, and a missing explanation, are read; the JSON schema allows neither."""
    assert read_reply('{"score": 1}', AspectVerdict) == AspectVerdict(score=1, rationale="")
    claims = read_reply('{"answer_aspects": [{"id": "c1", "aspect": "a", "evidence": ["b"]}]}', AnswerAspects)
    assert claims is not None and claims.answer_aspects == [Claim(id=0, aspect="a", explanation="", evidence="")]
    verdict = json_schema(ClaimVerdicts)["$defs"]["ClaimVerdict"]
    assert verdict["properties"]["score"] == {"enum": [-1, 0, 1], "title": "Score", "type": "integer"}
    assert verdict["required"] == list(verdict["properties"]) == ["id", "rationale", "score"]


def test_faithfulness_without_documents_is_zero_and_costs_no_call(tmp_path: Path) -> None:
    engine = scripted_judge()
    score = judge_it(tmp_path, engine, "faithfulness", QUESTION, trajectory(answer="Ada."))
    assert (score.value, score.reason, engine.calls) == (0.0, "no documents to check the answer against", [])


@pytest.mark.parametrize("name", ["faithfulness", "precision"])
@pytest.mark.parametrize(("empty_runs", "value"), [(5, 0.0), (1, 0.8)])
def test_a_run_without_claims_counts_0(tmp_path: Path, name: str, empty_runs: int, value: float) -> None:
    """Algorithm 4 starts at 0."""
    left = iter(range(empty_runs))

    def reply(given: Material) -> str:
        is_empty = set(given) == {"question", "answer"} and next(left, None) is not None
        return '{"answer_aspects": []}' if is_empty else judge_reply(given)

    engine = scripted_judge(reply)
    judged = trajectory(answer="Ada Torrin built it.", documents=["Ada Torrin built it."])
    score = judge_it(tmp_path, engine, name, QUESTION, judged, runs=5)
    assert score.value == pytest.approx(value)
    assert score.unparsed == 0 and ("no claims" in score.reason) == (empty_runs == 5)
    assert len(engine.calls) == 5 + 5 - empty_runs


def test_a_run_without_claims_is_neutral_where_the_published_code_is_followed(tmp_path: Path) -> None:
    engine = scripted_judge(lambda given: '{"answer_aspects": []}')
    judged = trajectory(answer="Velm has a harbour.", documents=["Velm has a harbour."])
    assert judge_it(tmp_path, engine, "faithfulness", QUESTION, judged, omitted_claims="neutral").value == 0.5


def test_precision_is_the_mean_of_normalised_claim_scores_against_the_reference(tmp_path: Path) -> None:
    engine = scripted_judge()
    said = "Ada Torrin built it. She was tall. She was loud. It was in 1204."
    score = judge_it(tmp_path, engine, "precision", QUESTION, trajectory(answer=said, documents=["She was tall"]))
    assert (score.name, score.value) == ("precision", pytest.approx(0.5))
    assert [verdict["scores"] for verdict in score.verdicts if verdict["part"] == "support"] == [[1, -1, -1, 1]] * 2
    assert [set(material(call.messages)) for call in engine.calls[2:]] == [
        {"question", "expected_output", "answer_aspects"}
    ] * 2
    assert len(engine.calls) == 2 * 2
    short = judge_it(tmp_path / "b", scripted_judge(), "precision", QUESTION, trajectory(answer="It was in 1204."))
    assert short.value == 1.0, "leaving out is recall's matter"
