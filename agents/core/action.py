"""One action of a model: a completion, and what its reader made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ratchet.agents.core.output import Malformed, Parsed
from ratchet.core.records import Repair
from ratchet.inference.completion import Completion


@dataclass(frozen=True)
class Action:
    """One completion and what its reader made of it."""

    completion: Completion
    text: str
    """What it says after its thoughts."""
    error: str
    """What is wrong with it, or nothing."""
    value: Any
    full: bool
    """It filled the context: nothing more can be said in this dialogue."""


def free_text(text: str) -> str:
    """The reader of text that may be anything."""
    return text


def read_completion(
    completion: Completion, said: str, reader: Callable[[str], Any], must_end: bool
) -> tuple[Any, tuple[Repair, ...], str]:
    """(what the reader made of `said`, what it tolerated, '') or (None, (), what is wrong).

    `must_end`: an answer that was cut off is wrong even where it happens to parse.
    """
    if must_end and completion.finish_reason != "stop":
        return None, (), f"cut off ({completion.finish_reason}) after {completion.new_tokens} tokens"
    if completion.text.strip() and not said.strip():
        return None, (), "there are thoughts and no answer"
    try:
        value = reader(said)
    except Malformed as error:
        return None, (), str(error)
    return (value.value, value.repairs, "") if isinstance(value, Parsed) else (value, (), "")
