import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.core.config import RewardsConfig, SelectConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question, Score, Selection, Status, Trajectory
from ratchet.rewards.selection import cause_text, reward, select, select_at_random
from ratchet.rewards.summary import cut_off_costs
from ratchet.sampling.store import Trajectories
from tests.helpers.reward_cases import trajectory

WEIGHTS = {"correctness": 4.0, "faithfulness": 1.0}
QUESTION = [Question(id="q1", text="?")]


def scored(*values: float | None, name: str = "f1") -> dict[tuple[str, str], Score]:
    """Scores of the samples 0, 1, ... of q1."""
    return {
        (trajectory(i).key, name): Score(trajectory=trajectory(i).key, name=name, value=value)
        for i, value in enumerate(values)
    }


def choose(
    *values: float | None, trajectories: list[Trajectory] | None = None, **rule: object
) -> tuple[list[int], str]:
    """(samples kept, reason) for rewards of the samples 0, 1, ..."""
    found = trajectories or [trajectory(i) for i in range(len(values))]
    selection = select(
        QUESTION, Trajectories.of(found), scored(*values), {"f1": 1.0}, SelectConfig.model_validate(rule)
    )
    samples = {t.key: t.sample for t in found}
    return [samples[key] for key in selection.kept], selection.questions[0].reason


def test_reward_is_the_weighted_mean_of_the_paper() -> None:
    scores = {**scored(0.5, name="correctness"), **scored(1.0, name="faithfulness")}
    assert reward(trajectory(0), scores, WEIGHTS) == pytest.approx((4 * 0.5 + 1.0) / 5)
    assert reward(trajectory(0), scored(0.5, name="correctness"), WEIGHTS) is None
    assert reward(trajectory(0), scored(0.5, name="correctness"), {**WEIGHTS, "faithfulness": 0}) == 0.5


def test_ties_are_kept_up_to_the_limit_lowest_samples_first() -> None:
    assert choose(1.0, 0.5, 1.0) == ([0, 2], "kept 2 of 3: 2 tied at 1.000")
    assert choose(0.5, 1, 1, 1, 1, 1) == ([1, 2, 3], "kept 3 of 6: 5 tied at 1.000 (at most 3 kept)")
    assert choose(1, 1, ties=1)[0] == [0]
    assert choose(0.1 + 0.2, 0.3)[0] == [0, 1]  # equal but for rounding


def test_a_tied_trajectory_with_the_same_sampled_tokens_is_passed_over() -> None:
    same = [trajectory(0, sampled=(4, 5)), trajectory(1, sampled=(4, 5)), trajectory(2, sampled=(4, 6))]
    assert choose(1, 1, 1, trajectories=same) == ([0, 2], "kept 2 of 3: 3 tied at 1.000 (1 the same as another)")


def test_the_papers_rule_keeps_identical_ties_and_has_no_threshold() -> None:
    same = [trajectory(i, sampled=(4, 5)) for i in range(4)]
    assert choose(0, 0, 0, 0, trajectories=same, min_reward=None, similarity=None) == (
        [0, 1, 2],
        "kept 3 of 4: 4 tied at 0.000 (at most 3 kept)",
    )


@pytest.mark.parametrize(
    ("values", "rule", "cause", "reason"),
    [
        ((0.0, 0.0), {}, "reward_too_low", "dropped: best reward is not above 0.0 (best 0.000 of 2)"),
        ((0.5, 0.2), {"min_reward": 0.5}, "reward_too_low", "dropped: best reward is not above 0.5 (best 0.500 of 2)"),
        ((0.5, 0.5), {"drop_all_equal": True}, "all_equal", "dropped: all rewards are equal (2 times 0.500)"),
        ((0.5,), {"drop_all_equal": True}, "all_equal", "dropped: all rewards are equal (1 times 0.500)"),
        (
            (0.4, 0.5),
            {"min_scores": {"f1": 0.5}},
            "score_too_low",
            "dropped: in some score no candidate is above its rewards.select.min_scores (best f1 0.500)",
        ),
        ((None, None), {}, "missing_scores", "dropped: no candidate has all its scores (2 without f1)"),
        ((), {}, "no_trajectory", "dropped: no trajectory was sampled"),
    ],
)
def test_a_dropped_question_says_why(
    values: tuple[float | None, ...], rule: dict[str, Any], cause: str, reason: str
) -> None:
    assert choose(*values, **rule) == ([], reason)
    made = [trajectory(i) for i in range(len(values))]
    selection = select(QUESTION, Trajectories.of(made), scored(*values), {"f1": 1.0}, SelectConfig.model_validate(rule))
    assert selection.questions[0].cause == cause


def test_a_random_selection_keeps_as_many_of_each_question_whatever_their_reward() -> None:
    endings: tuple[Status, ...] = (*("finished",) * 6, "unparsed", "failed", "out_of_budget")
    questions = [Question(id=f"q{n}", text="?") for n in range(40)]
    every = [
        trajectory(i, question=question.id, status=status, sampled=(4, i))
        for question in questions
        for i, status in enumerate(endings)
    ]
    every += [trajectory(9, question=question.id, answer=" ") for question in questions]
    values = {t.key: 1.0 if t.sample < 2 and t.question_id != "q0" else 0.0 for t in every}
    scores = {(key, "f1"): Score(trajectory=key, name="f1", value=value) for key, value in values.items()}
    selection = select(questions, Trajectories.of(every), scores, {"f1": 1.0}, SelectConfig())
    chosen = select_at_random(selection, every, seed=1)
    assert [len(choice.kept) for choice in chosen.questions] == [0] + [2] * 39
    assert chosen.questions[0] == selection.questions[0], "what was dropped stays dropped"
    samples = Counter(t.sample for t in every if t.key in chosen.kept)
    assert set(samples) == set(range(6)) and max(samples.values()) < 30, "of those that finished with an answer"
    assert all(t.question_id == c.question_id for c in chosen.questions for t in every if t.key in c.kept)
    random.Random(3).shuffle(every)
    assert select_at_random(selection, every, seed=1) == chosen != select_at_random(selection, every, seed=2)
    assert chosen.questions[1].reason == "kept: 2 of 6 well-formed trajectories, chosen at random"
    both = SelectConfig(keep_status=("finished", "out_of_budget"))
    late = select_at_random(select(questions, Trajectories.of(every), scores, {"f1": 1.0}, both), every, 1)
    assert {t.status for t in every if t.key in late.kept} == {"finished", "out_of_budget"}


def test_each_axis_needs_some_candidate_above_its_minimum_and_not_the_best_one() -> None:
    """The published code drops a question only where no path at all passes an axis."""
    scores = {**scored(1.0, 0.2, name="correctness"), **scored(0.1, 0.9, name="faithfulness")}
    rule = SelectConfig(min_scores={"correctness": 0.5, "faithfulness": 0.5})
    found = [trajectory(i) for i in range(2)]
    assert select(QUESTION, Trajectories.of(found), scores, WEIGHTS, rule).kept == (found[0].key,)
    low = {**scores, **scored(0.1, 0.5, name="faithfulness")}
    choice = select(QUESTION, Trajectories.of(found), low, WEIGHTS, rule).questions[0]
    assert (choice.kept, choice.cause) == ((), "score_too_low") and "best faithfulness 0.500" in choice.reason


def test_ties_go_by_the_scores_that_break_them_and_then_by_sample() -> None:
    correctness, faithfulness = (0.5, 0.625, 0.5, 0.625), (1.0, 0.5, 1.0, 0.5)  # each reward is 0.6
    scores = {**scored(*correctness, name="correctness"), **scored(*faithfulness, name="faithfulness")}
    found = [trajectory(i) for i in range(4)]
    for names, kept in (((), (0, 1)), (("correctness",), (1, 3)), (("faithfulness", "correctness"), (0, 2))):
        rule = SelectConfig(ties=2, prefer=names, similarity=None)
        assert select(QUESTION, Trajectories.of(found), scores, WEIGHTS, rule).kept == tuple(found[i].key for i in kept)
    with pytest.raises(ValueError, match="prefer: f1 is not computed"):
        RewardsConfig.model_validate({"select": {"prefer": ["f1"]}})


def test_ties_go_to_the_least_costs() -> None:
    scores = {**scored(1.0, 1.0, 1.0), **scored(3.0, 1.0, 2.0, name="searches")}
    found = [trajectory(i) for i in range(3)]
    rule = SelectConfig(ties=2, prefer=("searches",), similarity=None)
    kept = select(QUESTION, Trajectories.of(found), scores, {"f1": 1.0, "searches": 0.0}, rule).kept
    assert kept == (found[1].key, found[2].key)


def test_only_trajectories_that_ended_well_are_candidates() -> None:
    statuses: list[Status] = ["unparsed", "out_of_budget", "unparsed"]
    found = [trajectory(i, status=status) for i, status in enumerate(statuses)]
    reason = "dropped: no finished trajectory (2 unparsed, 1 out of budget)"
    assert choose(1, 0.5, 1, trajectories=found) == ([], reason)
    kept = choose(1, 0.5, 1, trajectories=found, keep_status=["finished", "out_of_budget"])
    assert kept == ([1], "kept 1 of 3: best at 0.500 (2 unparsed)")


@pytest.mark.parametrize("weights", [{}, {"f1": 0.0}, {"f1": -1.0, "em": 0.0}, {"f1": float("nan")}])
def test_weights_that_give_no_mean_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"rewards\.weights"):
        select(QUESTION, Trajectories.of([]), {}, weights, SelectConfig())


COSTLY = {"f1": 3.0, "em": 1.0, "model_calls": -0.2}


def with_costs(f1: float, em: float, calls: int, made: Trajectory | None = None) -> dict[tuple[str, str], Score]:
    made = made or trajectory(0)
    values = {"f1": f1, "em": em, "model_calls": float(calls)}
    return {(made.key, name): Score(trajectory=made.key, name=name, value=value) for name, value in values.items()}


def test_a_cost_is_taken_from_the_mean_of_the_scores_whatever_their_sum() -> None:
    assert reward(trajectory(0), with_costs(1.0, 0.5, 5), COSTLY) == pytest.approx((3 + 0.5 - 0.2 * 5) / 4)
    assert reward(trajectory(0), with_costs(0.5, 0.0, 1), {"f1": 1.0, "model_calls": -0.25}) == 0.25
    assert reward(trajectory(0), with_costs(1.0, 1.0, 100), COSTLY) == -1.0, "never less"
    kept = [trajectory(i) for i in range(3)]
    scores = {at: one for i, made in enumerate(kept) for at, one in with_costs(1.0, 1.0, 3 - i % 2, made).items()}
    assert select(QUESTION, Trajectories.of(kept), scores, COSTLY, SelectConfig()).kept == (kept[1].key,)


def test_under_a_cost_a_trajectory_that_failed_to_answer_stays_below_a_wrong_and_costly_answer() -> None:
    wrong, empty = trajectory(0), trajectory(1, answer=" ")
    cut = trajectory(2, status="out_of_budget")
    scores = with_costs(0.0, 0.0, 12, wrong) | with_costs(0.0, 0.0, 0, empty) | with_costs(1.0, 1.0, 0, cut)
    asked, made = [Question(id="q1", text="?", answers=("Ada",))], Trajectories.of([wrong, empty, cut])
    selection = select(asked, made, scores, COSTLY, SelectConfig(min_reward=None))
    rewards = selection.questions[0].rewards
    assert rewards == {wrong.key: pytest.approx(-0.6), empty.key: -1.0, cut.key: -1.0}
    assert selection.kept == (wrong.key,)
    abstained = with_costs(0.0, 1 / 3, 0, empty)
    assert reward(empty, abstained, COSTLY) == pytest.approx(1 / 12), "unless a score gives it something"


def test_costs_that_are_cut_off_are_a_warning() -> None:
    made = [trajectory(0), trajectory(1), trajectory(2), trajectory(3, status="unparsed"), trajectory(4, answer="")]
    calls = [1, 40, 50, 90, 90]
    scores = {at: one for t, n in zip(made, calls, strict=True) for at, one in with_costs(0.0, 0.0, n, t).items()}
    selection = select(QUESTION, Trajectories.of(made), scores, COSTLY, SelectConfig())
    assert cut_off_costs(selection, made).startswith(
        "2 of 3 trajectories with an answer cost so much that their reward"
    )
    free = {name: weight for name, weight in COSTLY.items() if weight > 0}
    assert not cut_off_costs(select(QUESTION, Trajectories.of(made), scores, free, SelectConfig()), made)


def test_a_cost_with_a_weight_above_0_is_refused() -> None:
    with pytest.raises(UserError, match=r"model_calls=1: it is a cost; give it a weight below 0"):
        select(QUESTION, Trajectories.of([]), {}, {"f1": 1.0, "model_calls": 1.0}, SelectConfig())


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[Question], list[Trajectory], dict[tuple[str, str], Score]]:
    questions = [Question(id=f"q{i}", text="?") for i in range(draw(st.integers(1, 4)))]
    trajectories, scores = [], {}
    statuses: list[Status] = ["finished", "unparsed", "out_of_budget", "failed"]
    value = st.one_of(st.none(), st.sampled_from([0.0, 1 / 3, 0.5, 1.0]), st.floats(0, 1))
    for question in questions:
        for sample in range(draw(st.integers(0, 8))):
            sampled = draw(st.lists(st.integers(0, 1), max_size=2))
            made = trajectory(sample, question=question.id, status=draw(st.sampled_from(statuses)), sampled=sampled)
            trajectories.append(made)
            for name in WEIGHTS:
                scores[made.key, name] = Score(trajectory=made.key, name=name, value=draw(value))
    return questions, trajectories, scores


rules = st.builds(
    SelectConfig,
    ties=st.integers(1, 4),
    min_reward=st.sampled_from([None, -1.0, 0.0, 0.4]),
    drop_all_equal=st.booleans(),
    keep_status=st.sampled_from([("finished",), ("finished", "out_of_budget")]),
    similarity=st.sampled_from([1.0, 0.5, None]),
    difficulty=st.sampled_from(["none", "failure_rate"]),
)


@pytest.mark.slow
@given(rounds(), rules, st.randoms())
def test_selection_properties(
    round_: tuple[list[Question], list[Trajectory], dict[tuple[str, str], Score]],
    rule: SelectConfig,
    rng: random.Random,
) -> None:
    questions, trajectories, scores = round_
    selection = select(questions, Trajectories.of(trajectories), scores, WEIGHTS, rule)
    statuses = {t.key: t.status for t in trajectories}
    least = -1.0 if rule.min_reward is None else rule.min_reward
    assert [choice.question_id for choice in selection.questions] == [question.id for question in questions]
    for choice in selection.questions:
        assert set(choice.rewards) == {t.key for t in trajectories if t.question_id == choice.question_id}
        assert choice.reason.startswith("kept " if choice.kept else "dropped: ")
        assert (choice.cause == "kept") == bool(choice.kept)
        if not choice.kept:
            assert choice.reason.startswith(f"dropped: {cause_text(choice.cause, rule)}")
        assert len(choice.kept) == len(set(choice.kept)) <= rule.ties
        assert set(choice.kept) <= set(choice.candidates) <= set(choice.rewards)
        assert bool(choice.kept) == bool(choice.candidates) and 0 <= choice.weight <= 1
        candidates = [
            value for key, value in choice.rewards.items() if value is not None and statuses[key] in rule.keep_status
        ]
        for key in choice.kept:
            value = choice.rewards[key]
            assert value is not None
            assert statuses[key] in rule.keep_status
            assert value >= max(candidates) - 1e-9
            assert value > least
        if not rule.drop_all_equal and candidates and max(candidates) > least + 1e-9:
            assert choice.kept

    shuffled, pairs = list(trajectories), list(scores.items())
    rng.shuffle(shuffled)
    rng.shuffle(pairs)
    again = select(questions, Trajectories.of([*shuffled, *shuffled[:2]]), dict(pairs), WEIGHTS, rule)
    assert again == selection
    assert Selection.model_validate_json(selection.model_dump_json()) == selection


# Rules that are off by default


def selected(
    rewards: Mapping[str, tuple[float, ...]], questions: list[Question] | None = None, **rule: object
) -> Selection:
    """A selection of questions with these rewards by sample."""
    asked = questions or [Question(id=name, text="?") for name in rewards]
    made = [trajectory(i, question=q, sampled=(i + 1,)) for q, values in rewards.items() for i in range(len(values))]
    scores = {(t.key, "f1"): Score(trajectory=t.key, name="f1", value=rewards[t.question_id][t.sample]) for t in made}
    return select(asked, Trajectories.of(made), scores, {"f1": 1.0}, SelectConfig.model_validate(rule))


def samples(selection: Selection, number: int = 0) -> tuple[list[int], list[int]]:
    """(samples kept, samples of candidates) of a question."""
    choice = selection.questions[number]
    of = {key: sample for sample, key in enumerate(choice.rewards)}
    return [of[key] for key in choice.kept], [of[key] for key in choice.candidates]


def test_near_identical_trajectories_count_once() -> None:
    talk = list(range(40))
    found = [
        trajectory(0, sampled=talk),
        trajectory(1, sampled=[*talk[:-1], 99]),  # all but the last sequence of four are the same
        trajectory(2, sampled=talk[::-1]),
    ]
    assert choose(1.0, 1.0, 1.0, trajectories=found)[0] == [0, 1, 2]
    assert choose(1.0, 1.0, 1.0, trajectories=found, similarity=0.9)[0] == [0, 2]
    selection = select(
        QUESTION, Trajectories.of(found), scored(0.2, 0.9, 0.1), {"f1": 1.0}, SelectConfig(similarity=0.9)
    )
    assert samples(selection) == ([1], [1, 2])  # the better of two that are alike


def test_a_question_weighs_the_share_of_its_failures() -> None:
    rewards = {"easy": (1.0, 1.0, 1.0, 0.0), "hard": (1.0, 0.0, 0.0, 0.0), "wrong": (0.0, 0.0)}
    assert [choice.weight for choice in selected(rewards).questions] == [1, 1, 1]
    found = selected(rewards, difficulty="failure_rate").questions
    assert [choice.weight for choice in found] == [0.25, 0.75, 1.0]
