"""Commands in the test's process, as functions."""

import sys
from collections.abc import Callable, Sequence

from ratchet.commands.main import run


def command_of(*names: str) -> Callable[..., None]:
    """A function that runs `ratchet NAMES` with further words, by default those of the process."""

    def command(words: Sequence[str] | None = None) -> None:
        run([*names, *(sys.argv[1:] if words is None else words)])

    return command
