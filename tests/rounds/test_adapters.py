"""The adapter that a round ends with: chosen by reward on dev, and promoted where it is better than its parent."""

import io
import json
from math import ceil
from pathlib import Path
from statistics import stdev

import pytest

from ratchet.commands.recording import collect_facts
from ratchet.core.config import Config, RoundsConfig
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.evaluation.comparisons import decide, too_few_questions
from ratchet.evaluation.formats import format_difference
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.measures.statistics import paired_difference
from ratchet.questions.manifest import open_run
from ratchet.report.rounds import tone_of
from ratchet.rounds.adapters import best_candidate, candidate_arms
from ratchet.rounds.artefacts import File
from ratchet.rounds.records import (
    AdapterChoice,
    best_round,
    kept_any,
    last_promoted,
    last_round,
    read_promotions,
    why_it_ended,
)
from ratchet.rounds.status import print_status
from tests.helpers.planned_run import decided, experiment, selected

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


def difference(before: list[float], after: list[float]) -> Difference:
    return paired_difference(before, after, seed=1)


def test_better_by_more_than_chance_is_promoted() -> None:
    promoted, reason = decide(difference([0.0] * 6 + [1.0], [1.0] * 7), 0.05, "f1")
    assert promoted
    assert reason == "Promoted: F1 0.143 -> 1.000: +0.857, p = 0.0312 on 7 questions of dev."


def test_better_by_chance_is_not() -> None:
    promoted, reason = decide(difference([0.0] * 5, [1.0] * 5), 0.05, "f1")
    assert not promoted and "p is not below 0.05" in reason and "p = 0.0625 on 5 questions" in reason
    assert decide(difference([0.0] * 5, [1.0] * 5), 0.07, "f1")[0], "the level is the config's"


def test_what_is_promoted_is_what_tables_call_better() -> None:
    gain = difference([0.0] * 20, [1.0] * 12 + [0.0] * 8).model_copy(update={"low": 0.0})
    promoted, reason = decide(gain, 0.05, "f1")
    assert not promoted and "chance may explain the gain (the 95% interval holds 0)" in reason
    assert tone_of(gain, "f1") == "" and format_difference(gain, "f1").style == ""


def test_a_laxer_level_than_that_of_the_interval_is_decided_by_p_alone() -> None:
    """With `level: 0.99` an adapter is promoted wherever its mean is higher, however many questions changed."""
    gain = difference([0.0] * 11 + [1.0] * 9, [1.0] * 11 + [0.0] * 9)
    assert gain.low is not None and gain.low < 0 and gain.p is not None and gain.p > 0.5
    assert decide(gain, 0.99, "f1")[0] and not decide(gain, 0.05, "f1")[0]
    assert tone_of(gain, "f1") == "", "tables keep their own level"


def test_worse_or_equal_is_not_however_clear() -> None:
    promoted, reason = decide(difference([1.0] * 9, [0.0] * 9), 0.99, "f1")
    assert not promoted and "not better than its parent" in reason
    assert not decide(difference([0.5] * 9, [0.5] * 9), 0.999, "f1")[0]


def test_a_dev_that_is_too_small_for_the_gain_says_how_many_questions_it_takes() -> None:
    halves = [0.0, 1.0] * 20
    said = too_few_questions(halves, 0.05)
    needed = ceil((2.8016 * stdev(halves) / 0.05) ** 2)  # standard errors for a power of 0.8 at 0.05, two-sided (Cohen)
    assert f"a gain of 0.05: its 40 questions show one of 0.22 or more, and it takes {needed}" in said
    assert needed > 700 and too_few_questions([0.0, 1.0] * (needed // 2 + 1), 0.05) == ""
    assert too_few_questions([1.0], 0.05) == too_few_questions([0.0] * 9, 0.05) == ""


def test_the_warning_of_a_promotion_is_in_status_and_ledger(tmp_path: Path) -> None:
    one = experiment(tmp_path, rounds={"count": 3})
    open_run(one.config)
    decided(one.run, 1, False)
    path = one.run.round(1).promotion
    told = {"warning": "dev is too small"}
    path.write_text(json.dumps(json.loads(path.read_text()) | told))
    out = io.StringIO()
    print_status(one, out)
    assert "warning: dev is too small" in out.getvalue()
    facts = collect_facts({"promotion": File(path)})
    assert facts == {"promoted": False, "reason": "as told", **told}


def test_nothing_to_compare_is_no_promotion() -> None:
    promoted, reason = decide(Difference(n=0), 0.05, "f1")
    assert not promoted and "no question of dev has a value" in reason


def test_the_last_promotion_before_a_round_is_what_it_starts_from(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert last_promoted(run, before=99) is None
    for number, promoted in ((1, True), (2, True), (9, True), (10, False)):
        decided(run, number, promoted)
    assert [p.round for p in read_promotions(run)] == [1, 2, 9, 10]
    assert [last_promoted(run, before=n) for n in (1, 2, 3, 9, 10, 11)] == [None, 1, 2, 2, 9, 9]
    assert best_round(run) == 9


def test_what_was_decided_before_an_earlier_round_was_done_again_stands_no_longer(tmp_path: Path) -> None:
    """Otherwise a run until dev is flat would go on after the round that is flat now, and serve an older adapter."""
    config = Config(run=str(tmp_path), rounds=RoundsConfig(count=8, until_flat=True))
    run = RunFolder(tmp_path)
    for number in (1, 2, 3):
        decided(run, number, number < 3)
    assert (best_round(run), last_round(config)) == (2, 3)
    decided(run, 1, False)
    assert [p.round for p in read_promotions(run)] == [1]
    assert last_round(config) == 1 and "after round 1 of at most 8" in why_it_ended(config)
    assert last_promoted(run, before=9) is None


def test_a_run_without_a_promotion_stands_by_its_last_adapter(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert best_round(run) is None
    for number in (1, 2):
        run.round(number).adapter.mkdir(parents=True)
    decided(run, 2, False)
    assert best_round(run) == 2
    decided(run, 1, True)
    assert best_round(run) == 1, "the last adapter lost"


def test_a_selection_that_kept_nothing_gives_no_candidate(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    folder = run.round(1)
    assert kept_any(folder), "before there is a selection, a candidate is taken for granted"
    folder.path.mkdir()
    folder.selection.write_text("damaged")
    assert kept_any(folder), "and the training says what is wrong"
    for kept in ((), ("k",)):
        selected(run, 1, kept)
        assert kept_any(folder) is bool(kept)
