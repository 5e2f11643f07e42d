"""Rewards that see all samples of a question at once: a file with `score_group`, and the judge's `group_ranking`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ratchet.core.errors import UserError
from ratchet.core.files import read_segments
from ratchet.core.records import Question, Trajectory
from ratchet.core.selection import Score
from ratchet.inference.scripted import ScriptedEngine
from ratchet.rewards import scoring
from ratchet.rewards.scoring import unfinished
from ratchet.rewards.store import stored_scores
from tests.helpers.reward_cases import Material, make_config, material, score_with, scripted_judge, trajectory

QUESTIONS = [
    Question(id="q1", text="Who built it?", answers=("Ada",), reference="Ada. Bo"),
    Question(id="q2", text="When?", answers=("1204",), reference="1204"),
]
FIRST = [trajectory(sample, answer) for sample, answer in enumerate(["Ada", "Ada, with Bo", "Cy", " ada"])]
SECOND = trajectory(0, "1204", question="q2")
RANK = """\
def score_group(question, trajectories):
    with open("calls.txt", "a") as calls:
        print(question.id, *[one.sample for one in trajectories], file=calls)
    by_length = sorted(trajectories, key=lambda one: len(one.answer))
    return [by_length.index(one) / len(trajectories) for one in trajectories]
"""
Values = dict[str, float | None]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank.py").write_text(RANK)
    return tmp_path


def scored(folder: Path, trajectories: Sequence[Trajectory], name: str = "./rank.py") -> dict[str, Score]:
    scores = score_with(make_config(folder, QUESTIONS), QUESTIONS, trajectories, [name], folder / "scores")
    return {key: score for (key, _), score in scores.items()}


def calls(folder: Path) -> list[str]:
    return (folder / "calls.txt").read_text().splitlines()


def test_a_group_is_scored_once_and_again_when_it_has_another_member(mine: Path) -> None:
    pilot = [*FIRST[:2], SECOND]
    found = scored(mine, [SECOND, FIRST[1], FIRST[0]])
    assert calls(mine) == ["q2 0", "q1 0 1"], "in the order of the samples, and a question of one sample is a group"
    assert [found[one.key].value for one in pilot] == [0.0, 0.5, 0.0]
    assert scored(mine, pilot) == found and len(calls(mine)) == 2

    whole = scored(mine, [*FIRST, SECOND])
    assert calls(mine)[2:] == ["q1 0 1 2 3"], "the other question's group is as it was"
    assert [whole[one.key].value for one in FIRST] == [0.25, 0.75, 0.0, 0.5]
    stored = stored_scores(mine / "scores", {one.key for one in FIRST})
    assert {key: score.value for (key, _), score in stored.items()} == {one.key: whole[one.key].value for one in FIRST}


def test_what_cannot_be_scored_is_no_member(mine: Path) -> None:
    empty, failed = trajectory(1, " "), trajectory(2, "", status="failed")
    found = scored(mine, [FIRST[0], empty, failed])
    assert calls(mine) == ["q1 0"]
    assert [found[one.key].value for one in (FIRST[0], empty, failed)] == [0.0, 0.0, None]
    scored(mine, [FIRST[0], empty, failed])
    assert len(calls(mine)) == 1
    sampled_again = scored(mine, [FIRST[0], empty, FIRST[2]])
    assert calls(mine)[1:] == ["q1 0 2"] and sampled_again[FIRST[2].key].value == 0.0


@pytest.mark.parametrize("name", ["em", "relevance"])
@pytest.mark.parametrize("before", [trajectory(0, "", status="failed"), trajectory(0, "")], ids=["failed", "empty"])
def test_a_trajectory_is_scored_again_when_it_was_sampled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, before: Trajectory
) -> None:
    monkeypatch.setattr(scoring, "open_engines", lambda *_: {"judge": scripted_judge()})
    assert scored(tmp_path, [before], name)[before.key].value in (None, 0.0)
    again = FIRST[0]
    assert again.key == before.key and scored(tmp_path, [again], name)[again.key].value == 1.0
    stored = stored_scores(tmp_path / "scores", {again.key})
    assert stored[again.key, name].value == 1.0


def test_a_group_is_scored_again_when_a_member_was_sampled_again(mine: Path) -> None:
    scored(mine, FIRST[:2])
    other = FIRST[1].model_copy(update={"answer": "A"})
    assert [scored(mine, [FIRST[0], other])[one.key].value for one in FIRST[:2]] == [0.5, 0.0]
    assert len(calls(mine)) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [1]", r"wrong\.py: score_group\(\) returned 1 values for the 4 trajectories of the question 'q1'"),
        ("return 0.5", r"returned no score for the 4 trajectories of the question 'q1' \(TypeError"),
        ("return [0, 1, float('nan'), 0]", rf"returned nan for the trajectory {FIRST[2].key} of the question 'q1'"),
        ("return [0, 1, 'good', 0]", r"returned 'good' for the trajectory"),
        ("return {}['x']", r"score_group\(\) failed on the 4 trajectories of the question 'q1' \(KeyError.*line 2\)"),
        ("return 1\n\n\nscore = score_group", "defines both score and score_group; a reward has one of them"),
    ],
)
def test_a_mistake_in_it_is_an_error_that_names_file_and_question(mine: Path, body: str, message: str) -> None:
    (mine / "wrong.py").write_text(f"def score_group(question, trajectories):\n    {body}\n")
    with pytest.raises(UserError, match=message) as raised:
        scored(mine, FIRST, "./wrong.py")
    assert "wrong.py" in str(raised.value)


def test_it_may_be_async_and_give_reasons(mine: Path) -> None:
    (mine / "late.py").write_text(
        "async def score_group(question, trajectories):\n    return [(None, 'no idea'), 1, 0.5, 0]\n"
    )
    found = scored(mine, FIRST, "./late.py")
    assert [found[one.key].value for one in FIRST] == [None, 1.0, 0.5, 0.0]
    assert found[FIRST[0].key].reason == "no idea"


class Ranked:
    """`group_ranking` with one engine in the judge's place after another."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, monkeypatch

    def __call__(self, engine: ScriptedEngine, trajectories: Sequence[Trajectory] = FIRST) -> dict[str, Score]:
        self._patch.setattr(scoring, "open_engines", lambda *_: {"judge": engine})
        return scored(self.folder, trajectories, "group_ranking")


@pytest.fixture
def ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranked:
    return Ranked(tmp_path, monkeypatch)


def shown(engine: ScriptedEngine) -> list[list[str]]:
    """The answers that each call shows, in its order."""
    return [[answer["answer"] for answer in material(call.messages)["answers"]] for call in engine.calls]


def test_the_judge_ranks_all_answers_in_one_call_a_run(ranked: Ranked) -> None:
    engine = scripted_judge()
    found = ranked(engine, [*FIRST, SECOND])
    assert [found[one.key].value for one in (*FIRST, SECOND)] == [0.5, 1.0, 0.0, 0.5, 0.5]
    assert len(engine.calls) == 2 * 2, "two runs of two questions"
    assert sorted(map(len, shown(engine))) == [1, 1, 3, 3], "equal answers once"
    assert [len(found[one.key].verdicts) for one in FIRST] == [2, 0, 0, 0]
    again = scripted_judge()
    assert ranked(again, [*FIRST, SECOND]) == found and not again.calls


def test_the_order_of_the_answers_is_drawn_and_the_same_every_time(ranked: Ranked, tmp_path: Path) -> None:
    many = [trajectory(sample, f"Answer {sample}") for sample in range(8)]
    first, second = scripted_judge(), scripted_judge()
    ranked(first, many)
    ranked.folder = tmp_path / "other"
    ranked(second, list(reversed(many)))
    assert sorted(shown(first)) == sorted(shown(second))
    in_order = [one.answer for one in many]
    assert len({tuple(order) for order in [*shown(first), in_order]}) == 3, "another one for each run"


def test_a_reply_that_leaves_an_answer_out_is_unreadable(ranked: Ranked) -> None:
    def leave_out(given: Material) -> str:
        return json.dumps({"scores_list": [{"id": 1, "rationale": "", "score": 10}]})

    found = ranked(scripted_judge(leave_out))
    assert {(score.value, score.reason) for score in found.values()} == {(None, "no readable verdict")}
    assert sum(score.unparsed for score in found.values()) == 2


def test_an_interrupted_ranking_repeats_no_call(ranked: Ranked) -> None:
    left = iter([True])

    def reply(given: Material) -> str:
        if next(left, None) is None:
            raise RuntimeError("the plug is pulled")
        return json.dumps({"scores_list": [{"id": i, "rationale": "", "score": i} for i in (1, 2, 3)]})

    with pytest.raises(RuntimeError, match="plug"):
        ranked(scripted_judge(reply))
    assert not list(read_segments(ranked.folder / "scores", Score))
    engine = scripted_judge()
    assert not unfinished({(key, ""): score for key, score in ranked(engine).items()})
    assert len(engine.calls) == 1
