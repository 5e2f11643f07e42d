import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import Config, RewardsConfig
from ratchet.core.errors import UserError
from ratchet.core.files import read_segments
from ratchet.core.records import Question, Score, Trajectory
from ratchet.inference.engine import EngineError, current_question
from ratchet.inference.scripted import ScriptedEngine
from ratchet.rewards import scoring
from ratchet.rewards.scoring import unfinished
from ratchet.rewards.store import stored_scores
from ratchet.rewards.summary import scores_lines
from tests.helpers.reward_cases import (
    Material,
    asked,
    judge_reply,
    make_config,
    score_with,
    scripted_judge,
    settings_of,
    trajectory,
)

QUESTIONS = [
    Question(id=f"q{i}", text=f"What is fact {i}?", answers=(f"Fact {i}",), reference=f"Fact {i}. It is so.")
    for i in range(4)
]
TRAJECTORIES = [
    trajectory(sample, answer=f"Fact {i}. Sample {sample}.", question=f"q{i}", documents=[f"Fact {i} is known"])
    for i in range(4)
    for sample in range(3)
]
JUDGED = ["correctness", "faithfulness"]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_config(tmp_path, QUESTIONS)


class Judged:
    """Scores with one engine in the judge's place after another."""

    def __init__(self, config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config, self.folder, self.opened = config, folder, 0
        self._patch = monkeypatch

    def __call__(
        self,
        engine: ScriptedEngine | None,
        names: Sequence[str] = JUDGED,
        trajectories: Sequence[Trajectory] = TRAJECTORIES,
        config: Config | None = None,
    ) -> dict[tuple[str, str], Score]:
        def open_engines(models: Any, wanted: set[str]) -> dict[str, ScriptedEngine]:
            assert wanted == {"judge"}
            assert engine is not None, "the judge was opened"
            self.opened += 1
            return {"judge": engine}

        self._patch.setattr(scoring, "open_engines", open_engines)
        return score_with(config or self.config, QUESTIONS, trajectories, names, self.folder)


@pytest.fixture
def judged(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judged:
    return Judged(config, tmp_path / "scores", monkeypatch)


@pytest.mark.slow
def test_every_pair_has_its_score(judged: Judged) -> None:
    scores = judged(scripted_judge(), ["em", "correctness", "faithfulness"])
    assert set(scores) == {(t.key, name) for t in TRAJECTORIES for name in ("em", "correctness", "faithfulness")}
    first = TRAJECTORIES[0].key
    assert scores[first, "em"].value == 0.0
    assert scores[first, "correctness"].value == pytest.approx((1 + 1 / 3) / 2)
    assert scores[first, "faithfulness"].value == 0.5
    on_disk = {(s.trajectory, s.name): s for s in read_segments(judged.folder, Score)}
    assert on_disk == scores == stored_scores(judged.folder, {t.key for t in TRAJECTORIES})
    assert judged(None, ["em", "correctness", "faithfulness", "f1"]).items() >= scores.items(), "and no judge is opened"
    engine = scripted_judge()
    later = judged(engine, ["precision", "faithfulness"])
    assert len(engine.calls) == len(TRAJECTORIES) * 2, "the claims of faithfulness are stored"
    assert later[first, "precision"].value == 0.5


@pytest.mark.slow
def test_the_calls_about_one_question_belong_together(judged: Judged) -> None:
    """So that one server of several answers them (`inference.http.vllm`)."""
    seen: list[str] = []

    def reply(given: Material) -> str:
        seen.append(current_question())
        return judge_reply(given)

    judged(scripted_judge(reply), ["correctness", "faithfulness"])
    assert len(seen) > len(QUESTIONS) and {*seen} == {question.id for question in QUESTIONS}


@pytest.mark.slow
@pytest.mark.parametrize("calls_before", [0, 1, 9, 30, 55])
def test_interrupted_work_goes_on_without_repeating_a_call(judged: Judged, tmp_path: Path, calls_before: int) -> None:
    left = iter(range(calls_before))

    def reply(given: Material) -> str:
        if next(left, None) is None:
            raise RuntimeError("the plug is pulled")
        return judge_reply(given)

    first, second, whole = scripted_judge(reply), scripted_judge(), scripted_judge()
    with pytest.raises(RuntimeError, match="plug"):
        judged(first)
    for path in tmp_path.rglob("*.jsonl"):
        if path.name != "questions.jsonl":
            path.write_bytes(path.read_bytes() + b'{"torn')
    scores = judged(second)

    done_before = asked(first)[:calls_before]
    assert not set(done_before) & set(asked(second))
    judged.folder, judged.config = tmp_path / "whole", make_config(tmp_path / "w", QUESTIONS)
    assert judged(whole) == scores
    assert sorted([*done_before, *asked(second)]) == sorted(asked(whole))


@pytest.mark.slow
def test_a_judge_that_cannot_be_reached_leaves_scores_unfinished(
    judged: Judged, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(given: Material) -> str:
        if given["question"] == "What is fact 1?" and "context" in given:
            raise EngineError("503")
        return judge_reply(given)

    scores = judged(scripted_judge(reply))
    left = unfinished(scores)
    assert {score.trajectory for score in left} == {t.key for t in TRAJECTORIES if t.question_id == "q1"}
    assert all(
        score.value is None and score.name == "faithfulness" and score.reason.startswith("2 of 2") for score in left
    )
    states = Counter(score.state for score in scores.values())
    assert states["unfinished"] == 3 and states["scored"] == 21
    assert "3 of 24 judged scores are unfinished" in capsys.readouterr().err
    assert not any(score.trajectory == left[0].trajectory for score in _stored(judged, "faithfulness"))

    again = scripted_judge()
    assert unfinished(judged(again)) == []
    assert len(again.calls) == 3 * 2  # the claims' verdicts, in both runs; the claims were drawn before
    assert not list((judged.folder / "judge").glob("*.jsonl"))


def _stored(judged: Judged, name: str) -> list[Score]:
    return [score for score in read_segments(judged.folder, Score) if score.name == name]


@pytest.mark.slow
def test_another_judge_does_not_reuse_scores(judged: Judged, tmp_path: Path) -> None:
    judged(scripted_judge(), ["correctness"])
    harsh = scripted_judge(
        lambda given: json.dumps({"score": -1, "rationale": ""}) if "aspect" in given else judge_reply(given),
        fingerprint="judge-b",
    )
    other_path = make_config(
        tmp_path, QUESTIONS, models={"agent": {"path": "tiny"}, "judge": {"path": "other", "concurrency": 4}}
    )
    scores = judged(harsh, ["correctness"], config=other_path)
    assert {score.value for score in scores.values()} == {0.0}
    assert {s.value for s in stored_scores(judged.folder, {t.key for t in TRAJECTORIES}).values()} == {0.0}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("correctness", {"empty_response": "abstention"}),
        ("correctness", {"constrained": False}),
        ("correctness", {"runs": 3}),
        ("faithfulness", {"omitted_claims": "neutral"}),
        ("precision", {"extracted": "once"}),
        ("precision", {"extraction_temperature": 0.0}),
    ],
)
def test_scores_of_other_settings_are_not_reused(config: Config, name: str, settings: dict[str, Any]) -> None:
    other = config.model_copy(update={"rewards": RewardsConfig(**{"runs": 2, **settings})})
    assert settings_of(config, name, "judge-a") != settings_of(other, name, "judge-a")
    unrelated = "relevance"
    if not settings.keys() & {"constrained", "runs"}:
        assert settings_of(config, unrelated, "judge-a") == settings_of(other, unrelated, "judge-a")


FAILED = trajectory(answer="Fact 0.", question="q0", status="failed", documents=["Fact 0"])
EMPTY = trajectory(answer=" \n", question="q0", documents=["Fact 0"])
BARE = [Question(id="q0", text="Who?")]


@pytest.mark.parametrize(
    ("made", "questions", "names", "value", "reason"),
    [
        (FAILED, QUESTIONS, JUDGED, None, "the trajectory failed"),
        (EMPTY, QUESTIONS, [*JUDGED, "precision"], 0.0, "the answer is empty"),
        (TRAJECTORIES[0], BARE, ["correctness"], None, "the question has no nuggets and no reference"),
        (EMPTY, BARE, ["precision"], None, "the question has no reference and no answers and no nuggets"),
    ],
)
def test_what_the_ending_or_the_question_decides_costs_no_call(
    judged: Judged,
    monkeypatch: pytest.MonkeyPatch,
    made: Trajectory,
    questions: list[Question],
    names: list[str],
    value: float | None,
    reason: str,
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "QUESTIONS", questions)
    engine = scripted_judge()
    scores = judged(engine, names, [made])
    assert {(score.value, score.reason) for score in scores.values()} == {(value, reason)} and engine.calls == []


@pytest.mark.parametrize("name", ["em", "relevance"])
@pytest.mark.parametrize("status", ["failed", "finished"])
def test_a_trajectory_is_scored_again_when_it_was_sampled_again(judged: Judged, name: str, status: Any) -> None:
    before, again = trajectory(0, "", question="q0", status=status), trajectory(0, "Fact 0", question="q0")
    assert before.key == again.key
    assert judged(scripted_judge(), [name], [before])[before.key, name].value in (None, 0.0)
    assert judged(scripted_judge(), [name], [again])[again.key, name].value == 1.0
    assert stored_scores(judged.folder, {again.key})[again.key, name].value == 1.0


def test_what_does_not_fit_the_context_is_null_and_finished(judged: Judged) -> None:
    judged.config = make_config(judged.folder.parent, QUESTIONS, rewards={"runs": 2, "max_tokens": 100})
    long = trajectory(answer="Fact 0.", question="q0", documents=["Fact 0 is known. " * 600])
    engine = scripted_judge(max_context=3000)
    score = judged(engine, ["faithfulness"], [long])[long.key, "faithfulness"]
    assert score.value is None and engine.calls == [], "documents are not trimmed"
    assert "do not fit its context" in score.reason
    assert unfinished({(long.key, "faithfulness"): score}) == []
    assert _stored(judged, "faithfulness") == [score]


def test_replies_that_were_cut_off_are_named_and_counted(judged: Judged) -> None:
    made = trajectory(answer="Fact 0. " * 300, question="q0", documents=["Fact 0"])
    scores = judged(scripted_judge(max_context=9_000), ["faithfulness"], [made])
    assert "2 of 2 replies were cut off (raise max_context of the judge" in scores[made.key, "faithfulness"].reason
    assert "unparsed verdicts of judge: faithfulness 2 (2 cut off)" in list(
        scores_lines(["faithfulness"], scores, "judge")
    )


def test_trajectories_of_unknown_questions_and_a_missing_judge_are_named(judged: Judged, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'q9', which is not among the questions"):
        judged(None, ["em"], [trajectory(question="q9")])
    no_judge = make_config(tmp_path, QUESTIONS, models={"agent": {"path": "t"}}, rewards={"weights": {"em": 1}},
                           evaluation={"scores": ["em"]})  # fmt: skip
    with pytest.raises(UserError, match=r"rewards\.judge names 'judge'"):
        judged(None, ["faithfulness"], config=no_judge)
