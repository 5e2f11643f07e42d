"""What a role's choice of action is worth, from attempts that part after the same tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from commands.rows import print_summary
from ratchet.config import TrainingConfig
from ratchet.records import QuestionChoice, Selection, Trajectory
from tests.helpers.attempts import REWARDS, rows_of, start_attempts
from tests.helpers.world import dialogue, tiny_model, trajectory
from training.credit import role_effects, role_weights


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def attempts(*taken: tuple[str, str, float]) -> tuple[list[Trajectory], Selection]:
    """One question's attempts: what the planner said, what the searcher said, the reward."""
    made = [
        trajectory(
            f"t{n}",
            "q",
            [dialogue("planner", [("Plan.", plan, "ok")]), dialogue("searcher", [("Search.", search, "ok")])],
        )
        for n, (plan, search, _) in enumerate(taken)
    ]
    rewards = {f"t{n}": reward for n, (_, _, reward) in enumerate(taken)}
    choice = QuestionChoice(question_id="q", kept=("t0",), cause="kept", reason="", rewards=rewards)
    return made, Selection(weights={}, rule={}, questions=(choice,))


def test_the_role_whose_choice_decides_has_all_the_effect() -> None:
    made = attempts(("a", "x", 1.0), ("a", "y", 1.0), ("b", "x", 0.0), ("b", "y", 0.0))
    effects = role_effects(*made)
    assert effects["planner"] == pytest.approx(0.5**0.5), "the variance of 0 and 1 is a half, and no chance is left"
    assert effects["searcher"] == 0.0, "its pairs with other actions differ no more than those with the same"
    assert role_weights(effects, 1.0) == pytest.approx({"planner": 2.0, "searcher": 0.0})
    assert role_weights(effects, 0.25) == pytest.approx({"planner": 1.25, "searcher": 0.75})
    assert role_weights(effects, 0.0) == {"planner": 1.0, "searcher": 1.0}


def test_chance_is_taken_off_and_comes_from_all_roles_where_a_role_repeats_nothing() -> None:
    """Equal plans end at 0 and 1: what differs is chance."""
    effects = role_effects(*attempts(("a", "w", 1.0), ("a", "x", 0.0), ("b", "y", 1.0), ("b", "z", 0.0)))
    assert effects == {"planner": 0.0, "searcher": 0.0}
    assert set(role_weights(effects, 1.0).values()) == {1.0}, "where nothing is known to matter, all weigh the same"


def test_a_role_that_never_had_a_choice_is_not_judged() -> None:
    effects = role_effects(*attempts(("a", "x", 1.0), ("a", "y", 0.0)))
    assert effects["planner"] is None
    assert role_weights(effects, 1.0)["planner"] == 1.0


def test_the_weights_are_the_rows(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(question: int, sample: int) -> Trajectory:
        """The planner decides whether the reward is above a half; the searcher says something else every time."""
        plan, search = "ab"[REWARDS[sample] > 0.5], f"x{sample % 2}"
        parts = [dialogue("planner", [(f"Plan {question}.", plan, "ok")])]
        parts.append(dialogue("searcher", [(f"Search {question}.", search, "ok")]))
        return trajectory(f"t{question}-{sample}", f"q{question}", parts, sample=sample)

    monkeypatch.setattr("tests.helpers.attempts.attempt", attempt)
    _, config, folder = start_attempts(tmp_path / "run", model, role_credit=0.5)
    by_role = {role: {r.weight for r in rows_of(config, folder) if r.role == role} for role in ("planner", "searcher")}
    [planner], [searcher] = by_role["planner"], by_role["searcher"]
    assert planner > 1 > searcher >= 0.5 and planner + searcher == pytest.approx(2)
    print_summary(config, 1)
    assert f"weights of roles (this round): planner {planner:.2f}, searcher {searcher:.2f}" in capsys.readouterr().out
    _, config, folder = start_attempts(tmp_path / "plain", model)
    assert {row.weight for row in rows_of(config, folder)} == {1.0}


def test_whole_trajectories_cannot_be_preferred_by_role() -> None:
    with pytest.raises(ValidationError, match="compares whole trajectories"):
        TrainingConfig(objective="dpo", role_credit=0.5)
    assert TrainingConfig.model_validate({"objective": "dpo", "role_credit": 0.5, "preference": {"level": "action"}})
