"""A few trials of every attack, and the campaign's own command."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import UserError
from ratchet.files import read_segment
from tests.campaign import __main__ as campaign
from tests.campaign import soak
from tests.campaign.attacks import ATTACKS
from tests.campaign.trial import Attack, Result, Trial, run_trial

pytestmark = pytest.mark.server

FAST = [
    pytest.param(attack, id=attack.name, marks=getattr(pytest.mark, attack.mark) if attack.mark else ())
    for attack in ATTACKS
    if attack.fast
]


@pytest.mark.parametrize("attack", FAST)
def test_a_few_trials(attack: Attack, tmp_path: Path) -> None:
    if reason := attack.missing():
        pytest.skip(reason)
    with attack.open(tmp_path) as trial:
        results = [run_trial(attack, trial, 0, number, patience=20) for number in range(attack.fast)]
    assert [result for result in results if result.problem] == []


def test_sampling_again_and_again_leaks_nothing(tmp_path: Path) -> None:
    with soak.soak(tmp_path, 0.0) as trial:
        trial(random.Random(0))


@contextmanager
def _sevens(folder: Path) -> Iterator[Trial]:
    def trial(dice: random.Random) -> None:
        thrown = dice.randrange(10)
        assert thrown != 7, "a seven"

    yield trial


@pytest.fixture
def sevens(monkeypatch: pytest.MonkeyPatch) -> Attack:
    attack = Attack("sevens", "no seven is thrown", _sevens, 1, 200)
    monkeypatch.setattr(campaign, "ATTACKS", (attack,))
    return attack


def test_a_campaign_resumes_and_repeats_by_its_seed(
    sevens: Attack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def results(folder: str) -> list[dict[str, Any]]:
        return [r.model_dump(exclude={"seconds"}) for r in read_segment(tmp_path / folder / "results.jsonl", Result)]

    campaign.main(["--seed", "5", "--out", str(tmp_path / "one"), "--part", "0.1"])
    capsys.readouterr()
    campaign.main(["--table", "--out", str(tmp_path / "one")])
    assert "| sevens | no seven is thrown | 20 |" in capsys.readouterr().out
    campaign.main(["--seed", "5", "--out", str(tmp_path / "one")])
    campaign.main(["--seed", "5", "--out", str(tmp_path / "two")])
    assert results("one") == results("two") and [one["number"] for one in results("one")] == list(range(200))
    failed = [one["number"] for one in results("one") if one["problem"]]
    assert 5 < len(failed) < 50
    assert f"| sevens | no seven is thrown | 200 | {len(failed)} |" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="a seven"):
        campaign.main(["--seed", "5", "--attack", "sevens", "--trial", str(failed[0])])
    with pytest.raises(UserError, match="another --out"):
        campaign.main(["--seed", "6", "--out", str(tmp_path / "one")])
    with pytest.raises(UserError, match="holds no results"):
        campaign.main(["--table", "--out", str(tmp_path)])
    with pytest.raises(UserError, match="no such attack"):
        campaign.main(["--attack", "seven"])
