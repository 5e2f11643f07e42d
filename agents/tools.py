"""What a system may do: converse with models, search, take notes. All is recorded here; a system writes no log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from pydantic import BaseModel

from agents.output import Malformed, Schema, json_schema, parse_output
from inference.dialogue import Dialogue
from inference.engine import Completion, Engine, EngineError, SamplingParams
from ratchet.config import RoleConfig, SystemConfig
from ratchet.errors import UserError
from ratchet.records import Conversation, Event, ModelCall, Note, ParseState, Passage, Search, content_key
from retrieval.index import Retriever

M = TypeVar("M", bound=BaseModel)

LEAST_ROOM = 16
"""Tokens that must be left in a context for an action to be tried at all (or the role's max_tokens, if less)."""

REASK = (
    "That answer cannot be used. {error}\nAnswer again, with one JSON object in the format asked for and nothing else."
)


@dataclass(frozen=True)
class Setting:
    """How a run plays a system: the same for every question of it."""

    temperature: float
    frozen_temperature: float
    """Of the roles that are not trained."""
    top_p: float
    adapter: str | None
    """A LoRA folder for the trainable roles; None: the base model."""
    policy: str
    """'base', or the adapter's digest."""


@dataclass(frozen=True)
class Answer:
    """What a system returns. A system that met its own budget says so and gives what it has."""

    text: str
    passages: tuple[Passage, ...] = ()
    """Supporting documents."""
    status: Literal["finished", "out_of_budget"] = "finished"


class Unparsed(Exception):
    """A role's action broke its schema and the malformed policy is exhausted."""

    def __init__(self, role: str, error: str) -> None:
        super().__init__(f"{role}: {error}")
        self.role, self.error = role, error


class OutOfBudget(Exception):
    """A conversation has no room left in its model's context."""

    def __init__(self, role: str, error: str) -> None:
        super().__init__(f"{role}: {error}")
        self.role, self.error = role, error


class Tools:
    """One trajectory's tools and its record.

    Calls may run at once (asyncio.gather), each on a dialogue of its own. Events are kept in the order in which they
    began. A call's seed is a hash of the trajectory's seed, the dialogue's number and the call's number in that
    dialogue, so it does not depend on which of two concurrent calls came first.
    """

    def __init__(
        self,
        config: SystemConfig,
        engines: Mapping[str, Engine],
        retriever: Retriever,
        setting: Setting,
        seed: int,
        watch: Callable[[Event], None] | None = None,
    ) -> None:
        self.config = config
        self._engines, self._retriever, self._setting, self._seed, self._watch = (
            engines,
            retriever,
            setting,
            seed,
            watch,
        )
        self._dialogues: list[Dialogue] = []
        self._calls: list[int] = []
        self._full: set[int] = set()
        self._events: list[Event | None] = []
        self._began = time.monotonic()

    # What systems call

    def role(self, name: str) -> RoleConfig:
        return self.config.role(name)

    def dialogue(self, role: str, system: str | None = None, examples: Sequence[tuple[str, str]] = ()) -> Dialogue:
        """Open a role's conversation; every `ask` on it extends it.

        `system` is its system message, `examples` are worked (user, assistant) exchanges that come before the first.
        """
        config = self.role(role)
        chat = self._engine(config.model).format
        dialogue = Dialogue(role, config.model, chat, config.trainable, system)
        for user, assistant in examples:
            dialogue.example(user, assistant)
        self._dialogues.append(dialogue)
        self._calls.append(0)
        return dialogue

    @overload
    async def ask(self, dialogue: Dialogue, text: str, schema: None = None, role: str | None = None) -> str: ...
    @overload
    async def ask(self, dialogue: Dialogue, text: str, schema: type[M], role: str | None = None) -> M: ...
    @overload
    async def ask(
        self, dialogue: Dialogue, text: str, schema: dict[str, Any], role: str | None = None
    ) -> dict[str, Any]: ...

    async def ask(self, dialogue: Dialogue, text: str, schema: Schema | None = None, role: str | None = None) -> Any:
        """Say `text` in the dialogue and return the model's answer: text, or the object of `schema`.

        `role` names the speaker where another role than the dialogue's own acts in it. Malformed answers are
        counted and treated by the config's policy. Raises Unparsed, OutOfBudget, EngineError.
        """
        role = role or dialogue.role
        attempts = 1 + (self.config.reasks if self.config.malformed == "reask" and schema is not None else 0)
        error = ""
        for attempt in range(attempts):
            completion, error, value = await self._act(dialogue, role, text, schema, attempt)
            if not error or schema is None:
                return completion.text if schema is None else value
            text = REASK.format(error=error)
        raise Unparsed(role, error)

    async def search(self, role: str, query: str, k: int, offset: int = 0) -> list[Passage]:
        """The passages of ranks offset..offset+k-1; fewer, or none, where the index has no more."""
        slot, at = self._start()
        passages = await asyncio.to_thread(self._retriever.search, query, k, offset)
        self._finish(
            slot,
            Search(
                role=role,
                query=query,
                k=k,
                offset=offset,
                passages=tuple(passages),
                at=at,
                seconds=time.monotonic() - self._began - at,
            ),
        )
        return passages

    def note(self, role: str, text: str) -> None:
        """Leave a remark in the trajectory: a decision of the system's own, for whoever reads the log."""
        slot, at = self._start()
        self._finish(slot, Note(role=role, text=text, at=at))

    # What the episode takes from here

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for event in self._events if event is not None)

    @property
    def conversations(self) -> tuple[Conversation, ...]:
        return tuple(dialogue.freeze() for dialogue in self._dialogues)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    # One action

    async def _act(
        self, dialogue: Dialogue, role: str, text: str, schema: Schema | None, attempt: int
    ) -> tuple[Completion, str, Any]:
        """One completion in the dialogue, recorded: (completion, error or '', parsed object)."""
        number = self._dialogues.index(dialogue)
        config, engine = self.role(role), self._engine(dialogue.model)
        full = OutOfBudget(role, f"its context of {engine.max_context} tokens is full")
        if number in self._full:
            raise full
        dialogue.user(text)
        room = engine.max_context - len(dialogue.ids)
        if room < min(LEAST_ROOM, config.max_tokens):
            self._full.add(number)
            raise full
        constrained = schema is not None and self.config.malformed == "constrain"
        params = SamplingParams(
            temperature=self._setting.temperature if config.trainable else self._setting.frozen_temperature,
            top_p=self._setting.top_p,
            max_tokens=min(config.max_tokens, room),
            seed=int(content_key(self._seed, number, self._calls[number])[:16], 16) >> 1,
            schema=json_schema(schema) if constrained and schema is not None else None,
        )
        self._calls[number] += 1
        slot, at = self._start()
        adapter = self._setting.adapter if config.trainable else None
        completion = await engine.generate(dialogue.ids, params, adapter, dialogue.messages)
        if completion.finish_reason == "timeout":  # the machine's fault, not the model's: to be done again
            raise EngineError(f"{role}: no end after {len(completion.ids)} tokens in the time one request may take")
        value, error = _read(completion, schema)
        start, end = dialogue.assistant(completion, parsed=not error)
        state: ParseState = "malformed" if error else "free" if schema is None else "ok"
        self._finish(
            slot,
            ModelCall(
                role=role,
                conversation=number,
                start=start,
                end=end,
                text=completion.text,
                parse=state,
                error=error,
                attempt=attempt,
                finish_reason=completion.finish_reason,
                prompt_tokens=completion.prompt_tokens,
                cached_tokens=completion.cached_tokens,
                new_tokens=len(completion.ids),
                at=at,
                seconds=time.monotonic() - self._began - at,
            ),
        )
        cut_by_context = completion.finish_reason == "context" or (
            completion.finish_reason == "length" and room < config.max_tokens
        )
        if cut_by_context:
            self._full.add(number)
            if schema is not None:
                raise full
        return completion, error, value

    def _engine(self, model: str) -> Engine:
        try:
            return self._engines[model]
        except KeyError:
            raise UserError(f"no model named {model!r} is open; name it under `models`") from None

    def _start(self) -> tuple[int, float]:
        self._events.append(None)
        return len(self._events) - 1, time.monotonic() - self._began

    def _finish(self, slot: int, event: Event) -> None:
        self._events[slot] = event
        if self._watch:
            self._watch(event)


def _read(completion: Completion, schema: Schema | None) -> tuple[Any, str]:
    """(parsed object, '') or (None, what is wrong). Whatever was cut off is wrong, even where it happens to parse."""
    if completion.finish_reason != "stop":
        return None, f"cut off ({completion.finish_reason}) after {len(completion.ids)} tokens"
    if schema is None:
        return None, ""
    try:
        return parse_output(completion.text, schema), ""
    except Malformed as error:
        return None, str(error)
