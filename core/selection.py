"""The records of scoring and selection: a trajectory's scores, and which trajectories of a round are kept and why."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from ratchet.core.records import Record

ScoreState = Literal["scored", "null", "unfinished"]
"""null: it cannot be told. unfinished: the judge could not be reached, so it is tried again and never stored."""


class Score(Record):
    """One score of one trajectory."""

    trajectory: str
    name: str
    value: float | None
    """In [0, 1], or null when it cannot be told: then `reason` says why. Null is never zero."""
    state: ScoreState = Field(default_factory=lambda given: "scored" if given.get("value") is not None else "null")
    reason: str = ""
    """Why it is null, or 0 without a look at the answer."""
    verdicts: tuple[dict[str, Any], ...] = ()
    """Every raw verdict behind the value, unparsable ones included."""
    unparsed: int = 0
    """How many of the verdicts could not be read."""
    content: str = Field("", exclude_if=lambda content: not content)
    """Digest of the record that was scored (`sampling.store.Outline`)."""

    @model_validator(mode="after")
    def _state_fits_value(self) -> Score:
        if (self.state == "scored") != (self.value is not None):
            raise ValueError(f"state {self.state!r} does not fit the value {self.value}")
        return self


Cause = Literal[
    "kept",
    "no_trajectory",
    "none_finished",
    "missing_scores",
    "reward_too_low",
    "score_too_low",
    "all_equal",
    "not_mixed",
]
"""What became of a question when trajectories were selected: some are kept, or why none is."""


class QuestionChoice(Record):
    """Which trajectories of a question were kept, and why."""

    question_id: str
    kept: tuple[str, ...]
    cause: Cause
    reason: str
    """The cause as a sentence with its numbers, for people only."""
    rewards: dict[str, float | None]
    """Trajectory key to weighted reward; 0 where it did not finish or has no answer, null where a needed score is null
    or the trajectory failed."""
    candidates: tuple[str, ...] = ()
    """Of a question that is kept, the trajectories that an objective over good and bad ones may learn from: with a
    reward, ended as the rule asks for, counted once."""
    weight: float = 1.0
    """Factor on the question's loss."""


class Selection(Record):
    """Which trajectories of a round were kept to train on."""

    weights: dict[str, float]
    rule: dict[str, Any]
    questions: tuple[QuestionChoice, ...]

    @property
    def kept(self) -> tuple[str, ...]:
        return tuple(key for choice in self.questions for key in choice.kept)
