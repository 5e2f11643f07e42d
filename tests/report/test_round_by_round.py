"""Several rounds on the page: the learning curve, what each round came to, and the ledger that links them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path

import pytest

from commands.report import main
from evaluation.measures.estimates import Difference
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.runfolder import RunFolder
from report.gather import Gathered
from report.ledger import ledger_view
from report.round_plots import learning_curve
from report.rounds import RoundNumbers, gather_rounds, interval, losses, number, numbers_on_disk
from report.training import LogLine
from rounds.records import Promotion
from tests.helpers.handmade_rounds import digest, make_rounds
from tests.helpers.handmade_run import make_run
from tests.helpers.reported import gathered, page
from tests.report.test_page import Page

Rounds = tuple[Config, RunFolder, Gathered, str]


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    config, run = make_rounds(tmp_path_factory.mktemp("rounds"))
    return config, run, gathered(config, run.round(3)), page(config, run.round(3))


@cache
def words_of(text: str) -> str:
    """What can be read, with a space wherever a cell or a word in bold begins or ends."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


@pytest.mark.slow
def test_each_candidate_stands_beside_the_adapter_that_it_follows(rounds: Rounds) -> None:
    found = rounds[2].rounds
    assert [n.promotion is not None and n.promotion.promoted for n in found] == [True, False, True]
    words = words_of(rounds[3])
    assert "40 questions of dev" in words
    for n in found:
        assert n.promotion is not None
        difference = n.promotion.difference
        assert f"{difference.before:.3f} {difference.after:.3f}" in words
        assert f"[{difference.low:.3f}, {difference.high:.3f}]".replace("-", "−") in words
    assert words.count("not promoted") == 1
    assert [n.promotion.parent for n in found if n.promotion] == ["base", digest("adapter", 1), digest("adapter", 1)]


def test_what_a_round_sampled_kept_and_learnt(rounds: Rounds) -> None:
    for n in rounds[2].rounds:
        assert n.selection is not None and n.losses is not None and n.base is not None and n.parse_rate is not None
        every = [r for choice in n.selection.questions for r in choice.rewards.values() if r is not None]
        assert f"32 {sum(every) / len(every):.3f}" in words_of(rounds[3]), "trajectories, mean reward"
        kept = sum(bool(choice.kept) for choice in n.selection.questions)
        assert f"{kept} of 8 {n.losses[0]:.2f} → {n.losses[1]:.2f} {n.parse_rate:.2f}" in words_of(rounds[3])


def test_questions_gained_and_broken_stand_beside_what_changes_by_chance(rounds: Rounds) -> None:
    words = words_of(rounds[3])
    assert "gained / broken" in words
    for n in rounds[2].rounds:
        assert n.results is not None
        trained, again = n.results.changes("adapter"), n.results.changes("base again")
        assert trained is not None and again is not None and trained.questions == again.questions == 40
        assert f"{trained.gained} / {trained.broken} base again {again.gained} / {again.broken}" in words


def test_losses_are_means_of_a_tenth_of_the_steps() -> None:
    log = [LogLine(step=i, loss=float(i)) for i in range(20)]
    assert losses([*log, LogLine(step=20, dev_loss=9.0)]) == (0.5, 18.5)
    assert losses(log[:1]) == (0.0, 0.0) and losses([LogLine(step=0)]) is None


def test_the_curve_draws_promoted_ones_filled_and_others_hollow(rounds: Rounds) -> None:
    plot = learning_curve(rounds[2].rounds)
    assert plot is not None
    rings = re.findall(r"<use[^>]*style=\"([^\"]*stroke-width: 1\.8[^\"]*)\"", plot.svg)
    filled = [("fill: var(--trained)" in ring, "fill-opacity: 0" in ring) for ring in rings]
    assert filled == [(True, False), (False, True), (True, False)]
    shown = [n.promotion.difference.after for n in rounds[2].rounds if n.promotion]
    assert all(f">{value:.2f}<" in plot.svg for value in shown if value is not None)


def test_the_curve_shows_test_and_the_table_form_and_substance(rounds: Rounds) -> None:
    found = rounds[2].rounds
    curve, alone = learning_curve(found), learning_curve([replace(n, results=None, tested=None) for n in found])
    assert curve is not None and alone is not None and curve.svg in rounds[3]
    assert "Squares: base and the tested adapter" in curve.caption and "Squares" not in alone.caption
    for n in found:
        comparison = n.results.comparison("adapter") if n.results else None
        assert comparison is not None
        parts = (comparison.gain.form, comparison.gain.substance)
        shown = " ".join(f"{number(part.mean, 2, True)} {interval(part, 2)}" for part in parts if part)
        assert shown in words_of(rounds[3])


@pytest.mark.usefixtures("undrawn")
def test_a_dev_that_is_too_small_is_told(rounds: Rounds) -> None:
    config, run, _, text = rounds
    assert "too small" not in text
    path = run.round(2).promotion
    before = path.read_text()
    told = {"warning": "dev is too small to show it"}
    try:
        path.write_text(json.dumps(json.loads(before) | told))
        words = words_of(page(config, run.round(3)))
        assert "Round 2, warning: dev is too small to show it" in words
    finally:
        path.write_text(before)


def test_a_round_without_a_candidate_and_one_without_an_interval_can_be_drawn(rounds: Rounds) -> None:
    def promotion(n: int, difference: Difference) -> Promotion:
        return Promotion(
            round=n, candidate="", parent="base", split="dev", measure="f1", base=None, difference=difference,
            promoted=False, reason="",
        )  # fmt: skip

    nothing = RoundNumbers(1, None, None, None, promotion(1, Difference(n=0)))
    assert learning_curve([nothing]) is None
    one = RoundNumbers(2, None, None, None, promotion(2, Difference(before=0.1, after=0.2, mean=0.1, n=1)))
    plot = learning_curve([nothing, one, RoundNumbers(3, None, None, None, None)])
    assert plot is not None and ">round 3<" in plot.svg


def test_the_ledger_is_told_round_by_round_in_the_order_of_work(rounds: Rounds) -> None:
    groups = ledger_view(rounds[2].ledger)
    assert [group["number"] for group in groups] == [1, 2, 3]
    second = [(row["stage"], row["superseded"]) for row in groups[1]["rows"]]
    assert second[1:3] == [("score and select", True), ("score and select", False)], "done again: the last one counts"
    words = words_of(rounds[3])
    assert "trajectories 96 · mean reward 0.1312 2026-03-01 11:05 2m02s node-1" in words


def test_hostile_text_in_a_ledger_is_text(rounds: Rounds) -> None:
    page = Page(rounds[3])
    assert page.running_scripts == 1
    assert not [tag for tag, _ in page.elements if tag in ("img", "iframe")]
    assert "<script>alert" not in rounds[3]


@pytest.mark.usefixtures("undrawn")
def test_a_run_of_one_round_has_no_such_parts_until_there_is_a_ledger(rounds: Rounds, tmp_path: Path) -> None:
    config, folder = make_run(tmp_path, train=4, test=4)
    text = page(config, folder)
    assert "Round by round" not in text and "The ledger" not in text
    run = RunFolder(config.folder)
    run.ledger.write_text(rounds[2].ledger[0].model_dump_json() + '\n{"torn')
    assert "The ledger" in page(config, folder)


@pytest.mark.slow
def test_the_command_takes_the_last_round_that_has_anything(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config, run, _, text = rounds
    (run.path / "round-4").mkdir()
    (run.path / "round-none").mkdir()
    assert numbers_on_disk(run) == [1, 2, 3]
    path = tmp_path / "config.json"
    path.write_text(config.model_dump_json())
    monkeypatch.setattr(sys, "argv", ["report", "--config", str(path)])
    main()
    assert run.report.read_text() == text
    monkeypatch.setattr(sys, "argv", ["report", "--config", str(path), "--round", "2"])
    main()
    second = words_of(run.report.read_text())
    assert "run · round 2 · dev split, 40 questions" in second, "before test, what the round was judged by"
    assert "After all rounds, in round 3's folder, on test: The trained model is better. F1" in second


@pytest.mark.usefixtures("undrawn")
def test_a_second_look_at_the_test_questions_is_told(rounds: Rounds) -> None:
    config, run, _, text = rounds
    assert "were looked at" not in words_of(text)
    again = run.round(1).evaluation / "results.json"
    shutil.copy(run.round(3).evaluation / "results.json", again)
    try:
        assert "looked at 2 times" in words_of(page(config, run.round(3)))
    finally:
        again.unlink()


def test_a_damaged_promotion_is_named(rounds: Rounds) -> None:
    config, run, _, _ = rounds
    path = run.round(2).path / "promotion.json"
    before = path.read_text()
    try:
        path.write_text("{}")
        with pytest.raises(UserError, match=r"round-2/promotion\.json"):
            gather_rounds(config.evaluation, run)
    finally:
        path.write_text(before)
