"""Which arms differ in their memory alone, and how many tool calls it saved, set by set and over all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.records import ToolCall
from ratchet.evaluation.results import Results
from ratchet.evaluation.tables.verification import memory_pairs, print_savings, savings
from tests.helpers.arms import make_arm
from tests.helpers.configs import SPLITS, config_values
from tests.helpers.verdict_arms import claims, compared, said

OFF: dict[str, Any] = {"name": "mermaid", "settings": {"memory": "off"}}


def settings_with(folder: Path, **baselines: Any) -> Config:
    split = {"path": str(folder / "claims.jsonl")}
    benchmarks = {"second": split, "second, shuffled": {**split, "order": "shuffled"}}
    values = config_values(
        folder,
        questions=dict.fromkeys(SPLITS, split),
        system={"name": "mermaid"},
        rewards={"weights": {"accuracy": 1.0}},
        evaluation={"baselines": baselines, "benchmarks": benchmarks},
    )
    return Config.model_validate(values)


def measured(split: str, calls: dict[str, list[int]]) -> Results:
    """Arms with so many tool calls on each claim."""
    questions = claims("S" * len(next(iter(calls.values()))))
    call = ToolCall(role="executor", source="s", tool="search", arguments={}, at=0.0, seconds=0.0)
    arms = []
    for name, counts in calls.items():
        done = [
            each.model_copy(update={"events": (call,) * count})
            for each, count in zip(said(questions, ["S" * len(questions)]), counts, strict=True)
        ]
        arms.append(make_arm(name, "mermaid", "base", questions, done, {}, (), {}))
    return compared(split, questions, arms, "accuracy")


def test_an_arm_is_compared_with_the_one_that_differs_in_its_memory_alone(tmp_path: Path) -> None:
    settings = settings_with(
        tmp_path,
        plain=OFF,
        meaning={"name": "mermaid", "settings": {"memory": "meaning", "memory_keys": "facts"}},
        short={"name": "mermaid", "settings": {"steps": 3}},
        other={"name": "cot"},
    )
    assert memory_pairs(settings) == {"base": "plain", "meaning": "plain"}
    with pytest.raises(UserError, match="no arm with a memory has a partner"):
        print_savings(settings_with(tmp_path, other={"name": "cot"}), [])


def test_savings_are_shares_of_all_calls_and_orders_are_totalled_apart(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, plain=OFF)
    suite = [
        measured("test", {"base": [1, 1, 0], "plain": [4, 4, 2]}),
        measured("second", {"base": [5, 5], "plain": [5, 5]}),
        measured("second, shuffled", {"base": [3, 3], "plain": [2, 2]}),
    ]
    found = list(savings(settings, suite, {"base": "plain"}))
    assert [(one.title, one.calls, one.saved.mean) for one in found] == [
        ("test", (10, 2), 0.8),
        ("second", (10, 10), 0.0),
        ("second, shuffled", (4, 6), -0.5),
        ("all 2 sets, in file order", (20, 12), 0.4),
    ]
    assert found[0].saved.low is not None and found[0].saved.low <= 0.8 <= (found[0].saved.high or 0)
    out = io.StringIO()
    print_savings(settings, suite, out)
    assert "all 2 sets, in file order" in out.getvalue() and "40.0" in out.getvalue()


def test_without_calls_nothing_can_be_saved(tmp_path: Path) -> None:
    suite = [measured("test", {"base": [0, 0], "plain": [0, 0]})]
    [one] = savings(settings_with(tmp_path, plain=OFF), suite, {"base": "plain"})
    assert one.saved.mean is None
