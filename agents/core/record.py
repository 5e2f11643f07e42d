"""The record of one trajectory: its dialogues, and its events in the order in which they began."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ratchet.core.records import Conversation, Event, Note, Search, ToolCall
from ratchet.inference.chat import Dialogue, Row


class Record:
    """What happens in one trajectory. Events may overlap, each between its `_start` and its `_finish`."""

    def __init__(self, watch: Callable[[Event], None] | None = None) -> None:
        """`watch` is called with each event as it ends."""
        self._watch = watch
        self._dialogues: list[Dialogue] = []
        self._calls: list[int] = []
        self._rows: dict[Row, Dialogue] = {}
        self._events: list[Event | None] = []
        self._started = time.monotonic()
        self._closed = False

    def open(self, dialogue: Dialogue) -> Dialogue:
        """Record a dialogue from now on, and return it."""
        self._dialogues.append(dialogue)
        self._calls.append(0)
        self._conversation(dialogue)
        return dialogue

    def note(self, role: str, text: str, reward: float | None = None) -> None:
        """Leave a remark in the trajectory: a decision of the system's own, for whoever reads the log. `reward`: what
        an agent makes of its own work, from 0 to 1."""
        slot, at = self._start()
        self._finish(slot, Note(role=role, text=text, reward=reward, at=at))

    def close(self) -> None:
        """End what still runs beside a branch that failed: its next call or search is cancelled."""
        self._closed = True

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for event in self._events if event is not None)

    @property
    def conversations(self) -> tuple[Conversation, ...]:
        return tuple(dialogue.freeze(row) for row, dialogue in self._rows.items())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def shown(self) -> list[str]:
        """What models were given to read: the messages that a reply follows, examples too."""
        texts = []
        for dialogue in self._dialogues:
            said = [turn.role == "assistant" for turn in dialogue.turns]
            last = len(said) - said[::-1].index(True) if True in said else 0
            texts += [turn.text for turn in dialogue.turns[:last] if turn.role != "assistant"]
        return texts

    @property
    def outage(self) -> str:
        """Why nothing could be looked up: the last failure where no search or tool call got an answer, else ""."""
        looked_up = [event for event in self.events if isinstance(event, Search | ToolCall)]
        return self.last_failure if all(event.state == "failed" for event in looked_up) else ""

    @property
    def last_failure(self) -> str:
        """Why the last search or tool call that got no answer got none; "" where all got one."""
        lookups = [event for event in self.events if isinstance(event, Search | ToolCall)]
        return next((event.error for event in reversed(lookups) if event.state == "failed"), "")

    def _conversation(self, dialogue: Dialogue) -> int:
        """The number of the conversation that the dialogue's row is."""
        if dialogue.row not in self._rows:
            self._rows[dialogue.row] = dialogue
        return list(self._rows).index(dialogue.row)

    def _start(self) -> tuple[int, float]:
        """(the place of an event that begins, when it begins)."""
        if self._closed:
            raise asyncio.CancelledError
        self._events.append(None)
        return len(self._events) - 1, self.seconds

    def _finish(self, slot: int, event: Event) -> None:
        self._events[slot] = event
        if self._watch:
            self._watch(event)
