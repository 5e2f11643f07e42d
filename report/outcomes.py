"""What became of a trajectory: its ending and what went wrong on the way, each with a message in plain words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ratchet.core.records import ModelCall, Question, Search, ToolCall, Trajectory
from ratchet.core.selection import Score
from ratchet.rewards.reward import has_answer
from ratchet.rewards.rules import accuracy, token_f1

ENDINGS = {
    "finished": "The system ended by itself.",
    "unparsed": "A reply was not in the form that was asked for, or was cut off before its end, so that its answer "
    "does not count: rewards and strict measures take it for the worst. Where it was cut off, a larger max_tokens "
    "helps.",
    "out_of_budget": "The limit of calls, turns or tokens was reached before the system ended by itself. Rewards and "
    "strict measures count it as the worst.",
    "failed": "A server or a machine failed, not the model. It is sampled again when the stage is run again, and has "
    "no reward until then.",
}
PROBLEMS = {
    "no_answer": "It gave no answer, so every score of it is 0.",
    "wrong_answer": "The answer shares no word with any accepted answer, or is not the right label.",
    "partly_right": "The answer shares words with an accepted answer, but differs from it (F1 between 0 and 1).",
    "null_score": "A score has no value, for the reason that stands beside it. It is in no mean, and not counted as 0.",
    "malformed": "An action did not parse at first. Where asking again helped, the trajectory continued.",
    "cut_off": "The model reached its limit of new tokens before it ended its turn.",
    "tool_error": "A tool refused a call; the trajectory shows its message.",
    "nothing_found": "A search returned no passage.",
}
OUTCOMES = {**ENDINGS, **PROBLEMS}


def outcomes_of(question: Question, trajectory: Trajectory) -> list[str]:
    """The trajectory's ending, then its problems, as far as these are seen without its scores."""
    calls = [event for event in trajectory.events if isinstance(event, ModelCall)]
    f1 = _answer_score(question, trajectory)
    problems = {
        "no_answer": not has_answer(trajectory),
        "wrong_answer": f1 == 0,
        "partly_right": f1 is not None and 0 < f1 < 1,
        "malformed": any(call.parse == "malformed" for call in calls),
        "cut_off": any(call.finish_reason == "length" for call in calls),
        "tool_error": any(isinstance(event, ToolCall) and event.error for event in trajectory.events),
        "nothing_found": any(isinstance(event, Search) and not event.passages for event in trajectory.events),
    }
    return [trajectory.status, *(name for name, holds in problems.items() if holds)]


def with_null_scores(outcomes: Sequence[str], scores: Iterable[Score]) -> list[str]:
    """The outcomes of a trajectory without its scores, and whether one of these has no value."""
    names = {*outcomes, *("null_score" for score in scores if score.value is None)}
    return [name for name in OUTCOMES if name in names]


def _answer_score(question: Question, trajectory: Trajectory) -> float | None:
    if not has_answer(trajectory) or not (question.label or question.answers):
        return None
    return accuracy(trajectory.answer, question) if question.label else token_f1(trajectory.answer, question.answers)


def count_outcomes(sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """{columns, rows} of the table of problems: a column for each section and arm, a row for each that occurs."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    titles: dict[tuple[str, str], str] = {}
    for section in sections:
        for question in section["questions"]:
            for run in question["runs"]:
                column = (section["name"], run["arm"])
                titles[column] = {"": "sampled", "adapter": "trained"}.get(run["arm"], run["arm"])
                counts.setdefault(column, Counter()).update(run["outcomes"])
    rows = [
        {
            "name": name,
            "message": message,
            "cells": [(section, arm, numbers[name]) for (section, arm), numbers in counts.items()],
        }
        for name, message in OUTCOMES.items()
        if name != "finished" and any(numbers[name] for numbers in counts.values())
    ]
    return {"columns": list(titles.values()), "rows": rows}
