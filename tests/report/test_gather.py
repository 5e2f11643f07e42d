"""Which questions of many are on the page."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ratchet.core.records import QuestionChoice
from ratchet.report.gather import choose_mixed, spread


def choice(number: int, kept: bool, rewards: int = 4) -> QuestionChoice:
    keys = {f"{number}-{i}": (i / 4 if i < rewards else None) for i in range(4)}
    return QuestionChoice(
        question_id=f"q{number:02d}",
        kept=(f"{number}-3",) if kept else (),
        cause="kept" if kept else "reward_too_low",
        reason="r",
        rewards=keys,
    )


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
