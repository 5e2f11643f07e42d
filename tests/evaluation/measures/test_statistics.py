"""Intervals and tests against scipy's, against known values, and by their properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ratchet.evaluation.measures import statistics
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.measures.statistics import (
    bootstrap_interval,
    holm,
    paired_difference,
    sign_flip_p,
    stratified_interval,
)

values = st.lists(st.floats(-100, 100, allow_nan=False), min_size=2, max_size=40)


def test_interval_agrees_with_scipy() -> None:
    sample = np.random.default_rng(1).beta(0.5, 1.5, 80)
    ours = bootstrap_interval(sample.tolist(), 3, 20_000)
    theirs = stats.bootstrap((sample,), np.mean, n_resamples=20_000, method="percentile", rng=4).confidence_interval
    assert ours.mean == pytest.approx(sample.mean())
    assert ours.low == pytest.approx(theirs.low, abs=0.003)
    assert ours.high == pytest.approx(theirs.high, abs=0.003)


def test_p_agrees_with_scipy_and_is_exact_on_few_questions() -> None:
    rng = np.random.default_rng(5)
    for n in (3, 8, 12):
        differences = rng.normal(0.3, 1, n)
        exact = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
        assert sign_flip_p(differences.tolist(), 0, 10_000) == pytest.approx(exact)
    differences = rng.normal(0.2, 1, 60)
    theirs = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=20_000, rng=1
    ).pvalue
    assert sign_flip_p(differences.tolist(), 0, 20_000) == pytest.approx(theirs, abs=0.02)


def test_p_of_known_cases() -> None:
    assert sign_flip_p([1.0, 1.0, 1.0], 0, 10_000) == pytest.approx(2 / 8)
    assert sign_flip_p([0.0, 0.0], 0, 10_000) == 1.0
    assert sign_flip_p([0.5], 0, 10_000) == 1.0, "one question can tell nothing"
    assert sign_flip_p([1.0] * 40, 0, 999) == pytest.approx(1 / 1000), "never zero: the seen flip is one of them"


@pytest.mark.parametrize("unchanged", [0, 1, 6, 40])
def test_clear_is_what_the_exact_test_says_wherever_few_questions_changed(unchanged: int) -> None:
    for gains in range(10):
        for losses in range(10 - gains):
            before = [0.0] * gains + [1.0] * (losses + unchanged)
            found = paired_difference(before, [1.0] * gains + [0.0] * losses + [1.0] * unchanged, 0)
            if not before:
                continue
            exact = stats.binomtest(gains, gains + losses).pvalue if gains + losses else 1.0
            assert found.p == pytest.approx(exact) and found.changed == gains + losses
            assert found.is_clear() == (exact < 0.05), (gains, losses)


def test_with_more_questions_interval_and_test_have_to_agree() -> None:
    both = Difference(mean=0.2, low=0.1, high=0.3, p=0.04, n=30, changed=12)
    assert both.is_clear() and not both.is_clear(level=0.01)
    assert not both.model_copy(update={"low": 0.0}).is_clear()
    assert not both.model_copy(update={"p": 0.05}).is_clear() and not both.model_copy(update={"p": None}).is_clear()
    assert both.model_copy(update={"low": 0.0, "changed": 9}).is_clear(), "p alone"
    assert not both.model_copy(update={"low": 0.0, "changed": None}).is_clear(), "of an earlier version"


def test_one_question_has_no_interval_and_equal_ones_a_point() -> None:
    one = bootstrap_interval([0.7], 0, 100)
    assert (one.mean, one.low, one.high, one.n) == (0.7, None, None, 1)
    same = bootstrap_interval([0.1] * 3, 0, 100)
    assert (same.low, same.high) == (same.mean, same.mean)
    pair = paired_difference([0.5], [1.0], 0)
    assert (pair.mean, pair.low, pair.p, pair.n) == (0.5, None, 1.0, 1)


def test_bad_input_is_refused() -> None:
    for bad in ([float("nan"), 1.0], [float("inf")]):
        with pytest.raises(ValueError, match=r"must be finite"):
            bootstrap_interval(bad, 0, 100)
    with pytest.raises(ValueError, match="pairs"):
        paired_difference([1.0], [1.0, 2.0], 0)


def test_a_seed_gives_the_same_numbers_whatever_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = np.random.default_rng(1).random(50).tolist()
    before = bootstrap_interval(sample, 7, 1000)
    assert bootstrap_interval(sample, 7, 1000) == before
    assert bootstrap_interval(sample, 8, 1000) != before
    monkeypatch.setattr(statistics, "BLOCK", 120)
    assert bootstrap_interval(sample, 7, 1000) == before


@pytest.mark.slow
@given(values, st.data())
@settings(deadline=None, max_examples=60)
def test_swapping_the_systems_turns_the_difference_around(before: list[float], data: st.DataObject) -> None:
    after = data.draw(st.lists(st.floats(-100, 100), min_size=len(before), max_size=len(before)))
    there, back = paired_difference(before, after, 1), paired_difference(after, before, 1)
    assert there.mean is not None and back.mean is not None and there.p is not None
    assert there.before is not None and there.after is not None
    assert there.mean == pytest.approx(-back.mean)
    assert there.p == pytest.approx(back.p)
    assert there.after - there.before == pytest.approx(there.mean, abs=1e-9)
    assert 0 < there.p <= 1


def test_holm_of_cases_worked_by_hand() -> None:
    # Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1, which may not fall below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []
    for bad in ([float("nan")], [-0.1], [1.1]):
        with pytest.raises(ValueError, match="nulls"):
            holm(bad)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(deadline=None, max_examples=60)
def test_holm_keeps_the_order_and_lies_between_no_correction_and_bonferroni(raw: list[float]) -> None:
    adjusted = holm(raw)
    assert all(p <= a <= min(1.0, p * len(raw)) for p, a in zip(raw, adjusted, strict=True))
    assert [a for _, a in sorted(zip(raw, adjusted, strict=True))] == sorted(adjusted)


def test_groups_weigh_alike_and_are_resampled_within() -> None:
    found = stratified_interval([[1.0] * 4, [0.0] * 40], 0, 500)
    assert (found.mean, found.low, found.high, found.n) == (0.5, 0.5, 0.5, 44)
    rng = np.random.default_rng(5)
    groups = [rng.random(40).tolist(), (2 * rng.random(60)).tolist()]
    mixed = stratified_interval(groups, 1, 4000)
    spread = sum(np.var(group) / len(group) for group in groups) ** 0.5 / 2
    assert mixed.low is not None and mixed.high is not None
    assert mixed.high - mixed.low == pytest.approx(2 * 1.96 * spread, rel=0.06)
    assert stratified_interval([[0.25], [0.75]], 0, 100).low is None
    broken_groups: list[list[list[float]]] = [[], [[]], [[1.0], []]]
    for broken in broken_groups:
        with pytest.raises(ValueError, match="no "):
            stratified_interval(broken, 0, 10)
