"""Errors a user can act on. A command prints them without a traceback and exits with status 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """An error that the user can fix: the message names the file, line or key, and the fix."""


def first_line(error: BaseException) -> str:
    """The reason that a library gives for not loading a model, in one line."""
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
