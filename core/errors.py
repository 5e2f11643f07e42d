"""Errors a user can act on. A command prints them without a traceback and exits with status 2."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable, Iterable


class UserError(Exception):
    """An error that the user can fix: the message names the file, line or key, and the fix."""


def raise_error(error: UserError) -> None:
    """Raise the error of a row: the default of readers."""
    raise error


class RowErrors:
    """The errors of the rows of files, which are raised together, so that all of them can be fixed at once."""

    MAX_SHOWN = 20

    def __init__(self, what: str = "rows") -> None:
        self._what = what
        self._shown: list[str] = []
        self._count = 0

    def add(self, error: UserError) -> None:
        self._count += 1
        if len(self._shown) < self.MAX_SHOWN:
            self._shown.append(str(error))

    def check(self, read: int) -> None:
        """Raise UserError where there are errors; `read` is the number of rows without one."""
        if self._count == 1:
            raise UserError(self._shown[0])
        if self._count:
            more = [f"and {self._count - self.MAX_SHOWN} more"] * (self._count > self.MAX_SHOWN)
            head = f"{self._count} of the first {read + self._count} {self._what} cannot be used:"
            raise UserError("\n  ".join([head, *self._shown, *more]))


def first_line(error: BaseException) -> str:
    """Return the reason that a library gives for not loading a model, in one line."""
    if "trust_remote_code" in str(error):
        return "it needs code of its own, and code that comes with a model is never run; take one that needs none"
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """' (did you mean X?)' for the closest of `choices`, or the complete list when none is close."""
    names = sorted(choices)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (known: {', '.join(names)})" if names else ""


def fault_in(name: str, is_name: Callable[[str], object]) -> str:
    """Name the character of a refused name that is at fault. `is_name` holds for every beginning of a good name too."""
    at = next((at for at in range(len(name)) if not is_name(name[: at + 1])), None)
    if at is None:
        return "the name is empty"
    code = f"U+{ord(name[at]):04X} {unicodedata.name(name[at], '')}".rstrip()
    return f"character {at + 1} is {name[at]!r} ({code})"
