"""What the plots are drawn from."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.records import QuestionChoice, Selection
from report.gather import choose_mixed, spread
from report.plots import expected_best, make_plots
from report.training import LogLine


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_expected_best_is_the_mean_over_all_ways_to_draw(rewards: list[float]) -> None:
    for n, found in enumerate(expected_best(rewards), 1):
        assert found == pytest.approx(fmean(max(drawn) for drawn in combinations(rewards, n)))


def choice(number: int, kept: bool, rewards: int = 4) -> QuestionChoice:
    keys = {f"{number}-{i}": (i / 4 if i < rewards else None) for i in range(4)}
    return QuestionChoice(
        question_id=f"q{number:02d}",
        kept=(f"{number}-3",) if kept else (),
        cause="kept" if kept else "reward_too_low",
        reason="r",
        rewards=keys,
    )


def test_questions_with_few_rewards_do_not_shorten_the_curve() -> None:
    choices = tuple(choice(i, True, rewards=1 if i == 0 else 4) for i in range(20))
    plots = make_plots(None, Selection(weights={"f1": 1}, rule={}, questions=choices), {})
    caption = next(plot.caption for plot in plots if plot.title == "What choosing is worth")
    assert "mean over 19 training questions" in caption and "1 with fewer" in caption


def test_nothing_to_draw_draws_nothing() -> None:
    assert make_plots(None, None, {}) == []
    empty = Selection(weights={"f1": 1}, rule={}, questions=(choice(0, False, rewards=0),))
    assert make_plots(None, empty, {"": (LogLine(step=1),)}) == []


def test_a_mix_is_half_kept_and_half_dropped_in_order_and_fills_up_from_the_other() -> None:
    choices = [choice(i, kept=i % 10 == 0) for i in range(40)]
    ids = choose_mixed(choices, 6)
    kept = {c.question_id for c in choices if c.kept}
    assert len(ids) == 6 and ids == sorted(ids)
    assert sum(i in kept for i in ids) == 3
    assert len(choose_mixed(choices, 20)) == 20 and kept <= set(choose_mixed(choices, 20))
    assert len(choose_mixed(choices, 100)) == 40


@given(st.integers(0, 50), st.integers(1, 20))
def test_a_spread_is_ordered_distinct_and_no_longer_than_asked(count: int, limit: int) -> None:
    found = spread([f"{i:02d}" for i in range(count)], limit)
    assert len(found) == min(count, limit) == len(set(found))
    assert found == sorted(found)
