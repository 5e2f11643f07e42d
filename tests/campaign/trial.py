"""What an attack is: trials drawn from a seed, and an oracle that every one of them must pass."""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.core.errors import UserError

Trial = Callable[[random.Random], None]
"""One attack with what the dice choose. Whatever it raises is a failure."""


@dataclass(frozen=True)
class Attack:
    """A kind of attack."""

    name: str
    open: Callable[[Path], AbstractContextManager[Trial]]
    """Sets up in an empty folder what all trials share. Its docstring says what a trial does; its assertions are the
    oracle."""
    fast: int
    """The number of trials among the project's tests."""
    whole: int
    """The number of trials of a whole campaign."""
    seconds: float = 30.0
    """A trial that takes longer has failed: it hangs."""
    mark: str = "server"
    """The mark of the attack's test."""
    missing: Callable[[], str] = str
    """What the attack wants and is not here; empty where all is here."""


def dice_of(seed: int, attack: Attack, number: int) -> random.Random:
    """The chances of one trial, which do not depend on the trials before it."""
    return random.Random(f"{seed} {attack.name} {number}")


def refusal(call: Callable[[], object]) -> str:
    """The message of the UserError that a call ends with; empty where it ends well."""
    try:
        call()
    except UserError as error:
        return str(error) or "no message"
    return ""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError in the block once it has taken so long."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
