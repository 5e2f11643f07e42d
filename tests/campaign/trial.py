"""What an attack is: trials drawn from a seed, and an oracle that every one of them must pass."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ratchet.errors import UserError

Trial = Callable[[random.Random], None]
"""One attack with what the dice choose. Whatever it raises is a failure."""


@dataclass(frozen=True)
class Attack:
    """A kind of attack."""

    name: str
    oracle: str
    """What must hold after every trial, for the table."""
    open: Callable[[Path], AbstractContextManager[Trial]]
    """Sets up in an empty folder what all trials share."""
    fast: int
    """The number of trials among the project's tests."""
    whole: int
    """The number of trials of a whole campaign."""
    seconds: float = 30.0
    """A trial that takes longer has failed: it hangs."""
    mark: str = ""
    """The mark of the test that runs the fast selection, beside `server`."""
    missing: Callable[[], str] = str
    """What the attack wants and is not here; empty where all is here."""


class Result(BaseModel, frozen=True):
    """How one trial went."""

    attack: str
    number: int
    seconds: float
    problem: str = ""
    """Empty where the oracle held."""


def dice_of(seed: int, attack: Attack, number: int) -> random.Random:
    """The chances of one trial, which do not depend on the trials before it."""
    return random.Random(f"{seed} {attack.name} {number}")


def run_trial(attack: Attack, trial: Trial, seed: int, number: int, patience: float = 1.0) -> Result:
    """Run one trial; what it raises becomes the result's problem. `patience`: a factor for its time limit."""
    started, problem = time.monotonic(), ""
    try:
        with _time_limit(attack.seconds * patience):
            trial(dice_of(seed, attack, number))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"[:2000]
    return Result(attack=attack.name, number=number, seconds=round(time.monotonic() - started, 3), problem=problem)


def refusal(call: Callable[[], object]) -> str:
    """The message of the UserError that a call ends with; empty where it ends well."""
    try:
        call()
    except UserError as error:
        return str(error) or "no message"
    return ""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
