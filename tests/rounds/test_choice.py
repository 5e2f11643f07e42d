"""Which evaluated adapter becomes a round's: the one with the best mean reward on dev."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.core.errors import UserError
from ratchet.core.runfolder import RoundFolder
from ratchet.rounds.adapters import best_candidate, candidate_arms
from ratchet.rounds.records import AdapterChoice
from tests.helpers.planned_run import experiment

LOSSES = {500: 0.7, 1000: 0.4, 1500: 0.5}


def trained(folder: Path) -> RoundFolder:
    found = RoundFolder(folder / "run" / "round-1")
    for step, loss in LOSSES.items():
        path = found.training / f"evaluated-{step}"
        path.mkdir(parents=True)
        (path / "evaluated.json").write_text(json.dumps({"step": step, "dev_loss": loss}))
    return found


def chosen(folder: Path, **rewards: dict[str, float]) -> AdapterChoice:
    found = {int(step.removeprefix("s")): values for step, values in rewards.items()}
    return best_candidate(trained(folder), found, {step: f"adapter{step}" for step in found}, {"f1": 1.0})


def test_the_best_mean_reward_chooses_and_not_the_lowest_loss(tmp_path: Path) -> None:
    choice = chosen(tmp_path, s500={"a": 1.0, "b": 0.5}, s1000={"a": 0.5, "b": 0.5}, s1500={"a": 0.0, "b": 0.5})
    assert (choice.step, choice.digest, choice.questions) == (500, "adapter500", 2)
    assert [(one.step, one.reward, one.dev_loss) for one in choice.candidates] == [
        (500, 0.75, 0.7), (1000, 0.5, 0.4), (1500, 0.25, 0.5)
    ]  # fmt: skip
    assert choice.reason == (
        "The adapter after step 500 has the best mean reward of 3 on 2 questions of dev, 0.750; the held-out loss "
        "would have chosen step 1000, with 0.500."
    )


def test_of_equal_rewards_the_earliest_is_chosen_on_the_questions_that_all_have(tmp_path: Path) -> None:
    choice = chosen(tmp_path, s500={"a": 0.5}, s1000={"a": 0.5, "b": 1.0}, s1500={"a": 0.5, "b": 1.0})
    assert (choice.step, choice.questions) == (500, 1)


def test_without_a_shared_question_nothing_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no question of dev has a reward from every adapter.*rewards\.weights"):
        chosen(tmp_path, s500={"a": 0.5}, s1000={})


def test_nothing_to_choose_from_is_said(tmp_path: Path) -> None:
    one = experiment(tmp_path, training={"choose_by": "reward"})
    with pytest.raises(UserError, match=r"nothing to choose from; train with training\.choose_by=reward"):
        candidate_arms(one.config, one.run.round(1))
