"""Judge runs where they are needed: who gets more, what is asked again, and what a selection says of it."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import Config, RewardsConfig, SelectConfig
from ratchet.core.files import read_segments, refer_to
from ratchet.core.records import Question, Score
from ratchet.inference.completion import Message, SamplingParams
from ratchet.inference.scripted import ScriptedEngine
from ratchet.rewards import scoring
from ratchet.rewards.runs import intervals, undecided
from ratchet.rewards.scoring import Scorer
from ratchet.rewards.selection import select
from ratchet.sampling.store import Trajectories, outline
from tests.helpers.reward_cases import asked, make_config, material, trajectory
from tests.helpers.tiny import tiny_format

QUESTIONS = [Question(id=f"q{i}", text=f"What is {i}?", reference=f"It is {i}.") for i in range(12)]
TRAJECTORIES = [trajectory(sample, f"Answer {sample}", question.id) for question in QUESTIONS for sample in range(5)]
ADAPTIVE = {"least": 2, "most": 5}
Scores = dict[tuple[str, str], Score]


def noisy_judge(limit: int = 10**9) -> ScriptedEngine:
    """A judge whose verdict on an answer is mostly the same; it breaks after so many calls."""
    left = iter(range(limit))

    def reply(prompt: str, params: SamplingParams, messages: Sequence[Message]) -> str:
        if next(left, None) is None:
            raise RuntimeError("the plug is pulled")
        given = material(messages)
        said = hashlib.sha256(f"{given['question']} {given['generated_output']}".encode()).digest()
        drawn = hashlib.sha256(f"{params.seed} {given['question']}".encode()).digest()
        score = (-1, 0, 1, 2)[(said if drawn[0] > 60 else drawn)[1] % 4]
        return json.dumps({"rationale": "so", "score": score})

    return ScriptedEngine(tiny_format(), reply, fingerprint="noisy")


def config_of(folder: Path, runs: Any) -> Config:
    return make_config(folder, QUESTIONS, rewards={"runs": runs, "weights": {"relevance": 1}})


def score(engine: ScriptedEngine | None, folder: Path, runs: Any, patch: pytest.MonkeyPatch) -> Scores:
    def opened(*_: Any) -> dict[str, ScriptedEngine]:
        assert engine is not None, "the judge was opened"
        return {"judge": engine}

    patch.setattr(scoring, "open_engines", opened)
    with Scorer(config_of(folder, runs), selects=True) as scorer:
        return scorer.score(QUESTIONS, Trajectories.of(TRAJECTORIES), ["relevance"], folder / "scores")


def chosen(scores: Scores) -> dict[str, tuple[str, ...]]:
    rule = SelectConfig(similarity=None)
    selection = select(QUESTIONS, Trajectories.of(TRAJECTORIES), scores, {"relevance": 1.0}, rule)
    return {choice.question_id: choice.kept for choice in selection.questions}


@pytest.mark.slow
def test_runs_go_to_those_that_may_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, all_runs = noisy_judge(), noisy_judge()
    scores = score(few, tmp_path / "few", ADAPTIVE, monkeypatch)
    full = score(all_runs, tmp_path / "all", 5, monkeypatch)
    assert len(all_runs.calls) == 5 * len(TRAJECTORIES)
    assert len(few.calls) == sum(len(one.runs) for one in scores.values()) < 0.8 * len(all_runs.calls)
    assert {len(one.runs) for one in scores.values()} > {2, 5}
    assert set(asked(few)) < set(asked(all_runs))
    few_kept, all_kept = chosen(scores), chosen(full)
    assert sum(few_kept[question] == all_kept[question] for question in all_kept) >= len(QUESTIONS) - 1
    assert all(
        one.value == pytest.approx(sum(v for v in one.runs if v is not None) / len(one.runs)) for one in scores.values()
    )
    assert {(s.trajectory, s.name): s for s in read_segments(tmp_path / "few" / "scores", Score)} == scores
    assert score(None, tmp_path / "few", ADAPTIVE, monkeypatch) == scores, "and no judge is opened"


@pytest.mark.slow
def test_the_rest_of_the_runs_can_be_asked_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, rest = noisy_judge(), noisy_judge()
    score(few, tmp_path, ADAPTIVE, monkeypatch)
    full = score(rest, tmp_path, {"least": 5, "most": 5}, monkeypatch)
    assert len(few.calls) + len(rest.calls) == 5 * len(TRAJECTORIES)
    assert set(asked(few)).isdisjoint(asked(rest))
    whole = score(noisy_judge(), tmp_path / "whole", 5, monkeypatch)
    assert {at: one.value for at, one in full.items()} == {at: one.value for at, one in whole.items()}


@pytest.mark.slow
def test_a_fork_asks_for_no_run_that_its_source_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, rest, fork = noisy_judge(), noisy_judge(), tmp_path / "fork"
    score(few, tmp_path, ADAPTIVE, monkeypatch)
    for folder in ("scores", "scores/judge"):
        refer_to(fork / folder, tmp_path / folder)
    score(rest, fork, 5, monkeypatch)
    assert len(few.calls) + len(rest.calls) == 5 * len(TRAJECTORIES)


@pytest.mark.slow
@pytest.mark.parametrize("calls_before", [0, 7, 60, 130])
def test_interrupted_judging_repeats_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls_before: int
) -> None:
    first, second, whole = noisy_judge(calls_before), noisy_judge(), noisy_judge()
    with pytest.raises(RuntimeError, match="plug"):
        score(first, tmp_path, ADAPTIVE, monkeypatch)
    scores = score(second, tmp_path, ADAPTIVE, monkeypatch)
    assert score(whole, tmp_path / "whole", ADAPTIVE, monkeypatch) == scores
    assert sorted([*asked(first)[:calls_before], *asked(second)]) == sorted(asked(whole))


@pytest.mark.slow
def test_an_evaluation_has_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = noisy_judge()
    monkeypatch.setattr(scoring, "open_engines", lambda *_: {"judge": engine})
    with Scorer(config_of(tmp_path, ADAPTIVE)) as scorer:
        scorer.score(QUESTIONS, Trajectories.of(TRAJECTORIES), ["relevance"], tmp_path / "scores")
    assert len(engine.calls) == 5 * len(TRAJECTORIES)


@pytest.mark.slow
def test_a_selection_says_how_many_runs_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = score(noisy_judge(), tmp_path, ADAPTIVE, monkeypatch)
    selection = select(QUESTIONS, Trajectories.of(TRAJECTORIES), scores, {"relevance": 1.0}, SelectConfig())
    reasons = [choice.reason for choice in selection.questions]
    assert all("judge runs" in reason for reason in reasons), reasons
    assert any("in 2 judge runs, " in reason and reason.endswith("in 5 judge runs") for reason in reasons), reasons


@pytest.mark.parametrize(
    ("runs", "more"),
    [
        ([(0.9, 0.9), (0.1, 0.1)], set()),  # no spread: decided
        ([(0.9, 0.8), (0.1, 0.2)], set()),
        ([(0.9, 0.5), (0.4, 0.8)], {0, 1}),
        ([(0.9, 0.7), (0.7, 0.9), (0.0, 0.0)], {0, 1}),
        ([(0.7, 0.7), (0.7, 0.7)], {0, 1}),  # a tie that further runs may break
        ([(0.0, 0.0), (0.0, 0.0)], {0, 1}),  # nothing is above min_reward yet
        ([(0.9, 0.5, 0.7, 0.7, 0.7), (0.4, 0.8, 0.7, 0.7, 0.7)], set()),  # all runs are there
        ([(0.9, None), (0.4, 0.4)], {0, 1}),  # an unreadable verdict
    ],
)
def test_who_needs_another_run(runs: list[tuple[float | None, ...]], more: set[int]) -> None:
    weights = {"relevance": 1.0}
    sampled = [outline(trajectory(at, f"Answer {at}", "q0")) for at in range(len(runs))]
    scores = {}
    for one, own in zip(sampled, runs, strict=True):
        known = [value for value in own if value is not None]
        scores[one.key, "relevance"] = Score(
            trajectory=one.key, name="relevance", value=sum(known) / len(known), runs=own
        )
    found = undecided(sampled, scores, weights, SelectConfig(), 5)
    assert found == {sampled[at].key: len(runs[at]) + 1 for at in more}


def test_equal_answers_tie_without_further_runs() -> None:
    sampled = [outline(trajectory(at, "One answer", "q0")) for at in range(2)]
    own = Score(trajectory=sampled[0].key, name="relevance", value=0.7, runs=(0.6, 0.8))
    other = own.model_copy(update={"trajectory": sampled[1].key, "equal_to": sampled[0].key})
    scores = {(own.trajectory, "relevance"): own, (other.trajectory, "relevance"): other}
    assert undecided(sampled, scores, {"relevance": 1.0}, SelectConfig(), 5) == {}


def test_those_whose_scores_have_no_runs_are_not_asked_for_more() -> None:
    """An answer without documents has a faithfulness that no judge gives, and may tie with one that is judged."""
    sampled = [outline(trajectory(at, f"Answer {at}", "q0")) for at in range(2)]
    own = [Score(trajectory=one.key, name="faithfulness", value=0.0) for one in sampled]
    scores = {(one.trajectory, one.name): one for one in own}
    for known, more in [(2, {sampled[0].key: 3}), (5, {})]:
        scores[own[0].trajectory, "faithfulness"] = own[0].model_copy(update={"runs": (0.0,) * known})
        rule = SelectConfig(min_reward=None)
        assert undecided(sampled, scores, {"faithfulness": 1.0}, rule, 5) == more


@pytest.mark.parametrize(
    ("runs", "more"),
    [((0.2, 0.9), 3), ((0.2, 0.1, 0.9, 0.9, 0.2), None), ((1.0, 1.0), None), ((None, None), 3), ((None,) * 5, None)],
)
def test_a_score_that_is_no_part_of_the_reward_may_need_runs(runs: tuple[float | None, ...], more: int | None) -> None:
    sampled, weights = [outline(trajectory(0, "Answer 0", "q0"))], {"f1": 1.0, "relevance": 0.0}
    known = [value for value in runs if value is not None]
    value = sum(known) / len(known) if known else None
    made = Score(trajectory=sampled[0].key, name="relevance", value=value, runs=runs)
    f1 = Score(trajectory=made.trajectory, name="f1", value=0.5)
    scores = {(one.trajectory, one.name): one for one in (made, f1)}
    rule = SelectConfig(min_scores={"relevance": 0.5})
    assert undecided(sampled, scores, weights, rule, 5) == ({made.trajectory: more} if more else {})


def test_runs_count_where_all_scores_have_them() -> None:
    """An answer equal to another one's, over other documents, has more runs of correctness than of faithfulness."""
    sampled = [outline(trajectory(at, f"Answer {at}", "q0")) for at in range(2)]
    weights = {"correctness": 1.0, "faithfulness": 1.0}
    runs = {"correctness": (0.5,) * 5, "faithfulness": (0.2, 0.9)}
    scores = {
        (one.key, name): Score(trajectory=one.key, name=name, value=sum(own) / len(own), runs=own)
        for one in sampled
        for name, own in runs.items()
    }
    assert undecided(sampled, scores, weights, SelectConfig(), 5) == {one.key: 3 for one in sampled}


def test_a_mean_stays_between_what_the_missing_runs_can_give() -> None:
    bounds = intervals({"a": (1.0, 1.0), "b": (0.0, 1.0), "c": (0.5,) * 5}, 5, 0.0)
    assert bounds["a"][1] == 1.0 and 0.4 <= bounds["a"][0] < 1.0
    assert bounds["b"] == pytest.approx((0.2, 0.8)), "no further than the other three runs can move it"
    assert bounds["c"] == (0.5, 0.5)


@pytest.mark.parametrize("runs", [{"least": 3, "most": 2}, {"least": 1, "most": 5}, {"lest": 2}, "many", 0])
def test_runs_that_make_no_sense_are_refused(runs: Any) -> None:
    with pytest.raises(ValueError, match="runs"):
        RewardsConfig.model_validate({"runs": runs})


def test_a_number_of_runs_is_written_as_it_was() -> None:
    """So that stored scores stay the current ones."""
    for runs in (3, {"least": 2, "most": 5}):
        assert RewardsConfig.model_validate({"runs": runs}).model_dump(mode="json")["runs"] == runs
    assert RewardsConfig.model_validate({"runs": {"least": 4, "most": 4}}) == RewardsConfig.model_validate({"runs": 4})
