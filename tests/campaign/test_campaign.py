"""Attacks drawn from a seed, of which the project's tests run a few trials each.

`CAMPAIGN=0.01 SEED=1 python -m pytest tests/campaign` runs a hundredth of a whole campaign, from seed 1;
`TRIAL=17 SEED=1 python -m pytest tests/campaign -k "odd configs"` runs one trial again.
"""

import math
import os
from pathlib import Path

import pytest

from tests.campaign import bad_input, damage, full_disk, kills, permissions, plugins, programs, replies, tables
from tests.campaign.trial import Attack, dice_of, time_limit

MODULES = (kills, full_disk, permissions, replies, plugins, programs, bad_input, tables, damage)
ATTACKS = tuple(attack for module in MODULES for attack in module.ATTACKS)
SEED = int(os.environ.get("SEED", "0"))


def numbers(attack: Attack) -> range:
    """The trials that are asked for."""
    if trial := os.environ.get("TRIAL"):
        return range(int(trial), int(trial) + 1)
    part = os.environ.get("CAMPAIGN")
    return range(math.ceil(attack.whole * float(part)) if part else attack.fast)


@pytest.mark.parametrize(
    "attack",
    [pytest.param(each, id=each.name, marks=getattr(pytest.mark, each.mark)) for each in ATTACKS if numbers(each)],
)
def test_trials(attack: Attack, tmp_path: Path) -> None:
    if reason := attack.missing():
        pytest.skip(reason)
    failures: list[Exception] = []
    with attack.open(tmp_path) as trial:
        for number in numbers(attack):
            try:
                with time_limit(20 * attack.seconds):  # a busy machine
                    trial(dice_of(SEED, attack, number))
            except Exception as error:
                error.add_note(f"SEED={SEED} TRIAL={number}")
                failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(numbers(attack))} trials failed; the first are", failures[:20])
