"""Several rounds on the page: what each round came to."""

from __future__ import annotations

import json
import re
import shutil
import sys
from functools import cache
from html import unescape
from pathlib import Path

import pytest

from ratchet.commands.config import IN_LOOP
from ratchet.core.config import Config
from ratchet.core.runfolder import RunFolder
from ratchet.report.gather import Gathered
from ratchet.report.plots import learning_curve
from ratchet.report.rounds import interval, number, numbers_on_disk
from tests.helpers.commands import command_of
from tests.helpers.handmade_rounds import digest, make_rounds
from tests.helpers.handmade_run import make_run
from tests.helpers.reported import gathered, page

main = command_of("report")

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
    assert "24 questions of dev" in words
    for n in found:
        assert n.promotion is not None
        difference = n.promotion.difference
        base, after = n.measure("base"), n.measure("adapter")
        assert base is not None and after is not None
        assert f"{number(base.mean, 3)} {interval(base, 3)} {difference.before:.3f}" in words
        assert f"{difference.before:.3f} {difference.after:.3f} {interval(after, 3)}" in words
        assert f"[{difference.low:.3f}, {difference.high:.3f}]".replace("-", "−") in words
    assert words.count("not promoted") == 1
    assert [n.promotion.parent for n in found if n.promotion] == ["base", digest("adapter", 1), digest("adapter", 1)]


def test_what_a_round_sampled_kept_and_learnt(rounds: Rounds) -> None:
    for n in rounds[2].rounds:
        assert n.selection is not None
        every = [r for choice in n.selection.questions for r in choice.rewards.values() if r is not None]
        assert f"32 {sum(every) / len(every):.3f}" in words_of(rounds[3]), "trajectories, mean reward"
        kept = sum(bool(choice.kept) for choice in n.selection.questions)
        assert f"{kept} of 8" in words_of(rounds[3])


NOTHING = {"candidate": "", "measure": "", "difference": {"n": 0}, "promoted": False, "reason": "No candidate."}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("decided", "told"),
    [
        (NOTHING, "Round 2: No candidate."),
        ({"warning": "dev is too small to show it"}, "Round 2, warning: dev is too small to show it"),
    ],
)
def test_what_was_decided_on_a_round_is_told(rounds: Rounds, decided: dict[str, object], told: str) -> None:
    config, run, _, text = rounds
    assert told not in words_of(text)
    path = run.round(2).promotion
    before = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(before) | decided))
        words = words_of(page(config, run.round(3)))
        assert told in words and "24 questions of dev" in words
    finally:
        path.write_text(before)


def test_the_learning_curve_shows_every_round_with_its_interval(rounds: Rounds) -> None:
    plot = learning_curve(rounds[2].rounds)
    assert plot is not None and f"<b>{plot.title}</b>" in rounds[3]
    means = [n.measure("adapter") for n in rounds[2].rounds]
    assert all(mean is not None and f">{mean.mean:.2f}</text>" in rounds[3] for mean in means)
    assert learning_curve(rounds[2].rounds[:1]) is None


@pytest.mark.usefixtures("undrawn")
def test_a_run_of_one_round_has_no_such_part(tmp_path: Path) -> None:
    config, folder = make_run(tmp_path, train=4, test=4)
    assert "Round by round" not in page(config, folder)


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
    monkeypatch.setenv(IN_LOOP, "1")  # else the page says that the ledger's digests, made by hand, are others
    monkeypatch.setattr(sys, "argv", ["report", "--config", str(path)])
    main()
    assert run.report.read_text() == text
    monkeypatch.setattr(sys, "argv", ["report", "--config", str(path), "--round", "2"])
    main()
    second = words_of(run.report.read_text())
    assert "run · round 2 · dev split, 24 questions" in second, "before test, what the round was judged by"
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
