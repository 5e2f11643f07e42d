"""Conversing with models: one trajectory's dialogues, the actions in them, and the record of both."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

from pydantic import BaseModel

from agents.core.action import Action, free_text, read_completion
from agents.core.answer import Answer, OutOfBudget, Unparsed
from agents.core.context import RunContext
from agents.core.lookahead import Draft, check_continues, cut_at_stop
from agents.core.output import Malformed, Parsed, Schema, grammar, object_schema, read_output, without_bounds
from agents.core.prompts.template import PromptSet
from inference.chat import ChatFormat, Dialogue, Row
from inference.chat_formats import with_thoughts
from inference.completion import Completion, SamplingParams
from inference.engine import Engine, EngineError
from inference.thinking import generate
from inference.thoughts import without_thoughts
from ratchet.config import RoleConfig, SystemConfig
from ratchet.errors import UserError
from ratchet.records import Conversation, Event, ModelCall, ParseState, content_key

OWN_WORDS = PromptSet()
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

MIN_ROOM = 16
"""Tokens that must be left in a context for an action to be tried at all (or the role's max_tokens, if less)."""


class Dialogues:
    """One trajectory's dialogues and its record; `agents.core.tools.Tools`, which systems get, adds search and more.

    Calls may run at once (asyncio.gather), each on a dialogue of its own. Events are kept in the order in which they
    began. A call's seed is a hash of the trajectory's seed, the dialogue's number and the call's number in that
    dialogue, so it does not depend on which of two concurrent calls came first.
    """

    def __init__(
        self,
        config: SystemConfig,
        engines: Mapping[str, Engine],
        context: RunContext,
        seed: int,
        watch: Callable[[Event], None] | None = None,
        prompts: PromptSet = OWN_WORDS,
    ) -> None:
        self.config, self._prompts = config, prompts
        self._engines, self._context, self._seed, self._watch = engines, context, seed, watch
        self._dialogues: list[Dialogue] = []
        self._calls: list[int] = []
        self._rows: dict[Row, Dialogue] = {}
        self._full: set[int] = set()
        self._events: list[Event | None] = []
        self._started = time.monotonic()
        self._closed = False
        self.so_far = Answer("")
        """The answer in hand: a system sets it as soon as it has one, and the episode returns it where a later action
        is malformed or out of budget. Set it where nothing runs at once, so that it does not depend on who is faster.
        """

    # What systems call

    def role(self, name: str) -> RoleConfig:
        return self.config.role(name)

    def chat_format(self, role: str) -> ChatFormat:
        """The tokenizer and chat template of the model that plays a role."""
        config = self.role(role)
        return with_thoughts(self._engine(config.model).format, config.thoughts)

    def prompt(self, slot: str, **values: str) -> str:
        """The message of a slot of the system's `PROMPTS`, or of the config's in their place, filled in.

        `question`, `task`, `form` and `labels` are those of the episode unless `values` has them.
        """
        return self._prompts.text(slot, **values)

    def dialogue(self, role: str, system: str | None = None, examples: Sequence[tuple[str, str]] = ()) -> Dialogue:
        """Open a role's conversation; every `ask` on it extends it.

        `system` is its system message, which is left out where it is empty; `examples` are worked (user, assistant)
        exchanges that come before the first; the config may put others in their place.
        """
        config = self.role(role)
        dialogue = Dialogue(role, config.model, self.chat_format(role), config.trainable, system or None)
        for user, assistant in self._examples(config, examples):
            dialogue.example(user, assistant)
        return self.open(dialogue)

    def blank(self, role: str) -> Dialogue:
        """A role's empty conversation, which `open` makes a part of the record."""
        config = self.role(role)
        return Dialogue(role, config.model, self.chat_format(role), config.trainable)

    def open(self, dialogue: Dialogue) -> Dialogue:
        """Record a dialogue from now on, and return it."""
        self._dialogues.append(dialogue)
        self._calls.append(0)
        self._conversation(dialogue)
        return dialogue

    def _conversation(self, dialogue: Dialogue) -> int:
        """The number of the conversation that the dialogue's row is."""
        if dialogue.row not in self._rows:
            self._rows[dialogue.row] = dialogue
        return list(self._rows).index(dialogue.row)

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

        Thoughts are no part of an answer (`inference.thoughts`), here as in `read` and `reply`. `role` names the
        speaker where another role than the dialogue's own acts in it. Malformed answers are counted and treated by the
        config's policy. Raises Unparsed, OutOfBudget, EngineError.
        """
        role = role or dialogue.role
        if schema is None:
            return (await self._act(dialogue, role, text, free_text)).text
        constrain = grammar(schema, self.role(role).max_tokens) if self.config.malformed == "constrain" else None
        expected: Schema = without_bounds(schema)

        def reader(said: str) -> Parsed:
            return read_output(said, expected, constrain)

        act = await self._act_again(dialogue, role, text, reader, "reask_json.user", constrain)
        if act.error and act.full:
            raise self._no_room(role, dialogue)
        if act.error:
            raise Unparsed(role, act.error)
        return act.value

    async def read(
        self,
        dialogue: Dialogue,
        text: str,
        reader: Callable[[str], T],
        fallback: Callable[[str], T] | None = None,
        role: str | None = None,
    ) -> T:
        """Say `text` in the dialogue and return what `reader` makes of the model's answer, free text in some form.

        A reader raises Malformed where the text is not in its form: the action is recorded as malformed, so it is
        counted and never trained on. The config's policy may ask again; after that `fallback`, the method's own rule
        for such text, decides. An answer that was cut off is malformed too, but is read if it can be. Raises Unparsed
        where there is no such rule, OutOfBudget, EngineError.
        """
        role = role or dialogue.role
        act = await self._act_again(dialogue, role, text, reader, "reask.user")
        if not act.error:
            return act.value
        with contextlib.suppress(Malformed):
            return reader(act.text)
        if fallback is None:
            raise Unparsed(role, act.error)
        return fallback(act.text)

    async def choose(self, text: str, key: str, choices: Sequence[str]) -> str | None:
        """Say `text` in the last dialogue and return one of `choices`, to which decoding is constrained whatever the
        config's policy is: the reply is a JSON object with one of them under `key`. None where no dialogue was opened.

        Raises Unparsed, OutOfBudget, EngineError.
        """
        if not self._dialogues:
            return None
        dialogue = self._dialogues[-1]
        schema = object_schema(**{key: {"type": "string", "enum": list(choices)}})
        act = await self._act(
            dialogue, dialogue.role, text, lambda said: read_output(said, schema, constrained=schema), constrain=schema
        )
        if act.error:
            raise Unparsed(dialogue.role, act.error)
        return str(act.value[key])

    async def draft(
        self,
        dialogue: Dialogue,
        text: str,
        prefix: Sequence[int],
        max_tokens: int,
        keep: Callable[[Draft], int],
        logprobs: bool = False,
        role: str | None = None,
    ) -> Draft:
        """Say `text`, begin the answer with the ids `prefix`, and let the model add at most `max_tokens` tokens.

        `keep` says how many of the new ids are used: 0, all, or any number between (`Draft.tokens` counts them). The
        dialogue ends here: for the next look-ahead open another one, whose `prefix` is this one and the ids used since.
        Raises OutOfBudget, also where there is no room for one token; EngineError, also where log-probabilities are
        missing; UserError from an engine that takes no token ids.
        """
        drafts: list[Draft] = []

        def place(completion: Completion) -> tuple[int, int]:
            draft = Draft.of(completion, dialogue.chat.decode)
            drafts.append(replace(draft, kept=keep(draft)))
            return dialogue.draft(completion, drafts[0].kept)

        role = role or dialogue.role
        check_continues(dialogue, f"system {self.config.name}: {role}")
        act = await self._act(
            dialogue, role, text, free_text, prefix=prefix, max_tokens=max_tokens, place=place, logprobs=logprobs
        )
        if not act.completion.ids:
            raise self._no_room(role, dialogue)
        return drafts[0]

    async def reply(
        self,
        dialogue: Dialogue,
        reader: Callable[[str], Any] | None = None,
        schema: dict[str, Any] | str | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> tuple[Completion, str, Any]:
        """What the model says in a dialogue that a program has extended: (the completion, its text after the thoughts,
        what the reader made of that).

        The value is None where the completion is malformed or was cut off: it is recorded so and never trained on.
        The completion ends before the first of the texts `stop`. Raises OutOfBudget, EngineError.
        """
        act = await self._act(
            dialogue, dialogue.role, None, reader or free_text, constrain=schema, max_tokens=max_tokens, stop=stop
        )
        return act.completion, act.text, act.value

    # What the episode takes from here

    def close(self) -> None:
        """End what still runs beside a branch that failed: its next call or search is cancelled."""
        self._closed = True

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
    def events(self) -> tuple[Event, ...]:
        return tuple(event for event in self._events if event is not None)

    @property
    def conversations(self) -> tuple[Conversation, ...]:
        return tuple(dialogue.freeze(row) for row, dialogue in self._rows.items())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    # One action

    async def _act_again(
        self,
        dialogue: Dialogue,
        role: str,
        text: str,
        reader: Callable[[str], Any],
        slot: str,
        constrain: dict[str, Any] | None = None,
    ) -> Action:
        """The first action that its reader can read, or the last of as many as the config's policy allows. `slot`: of
        the message that shows an error."""
        for attempt in range(self._attempts):
            act = await self._act(dialogue, role, text, reader, constrain, attempt)
            if not act.error or act.full:
                break
            if self.config.malformed == "reask":
                text = self.prompt(slot, error=act.error)
        return act

    async def _act(
        self,
        dialogue: Dialogue,
        role: str,
        text: str | None,
        reader: Callable[[str], Any],
        constrain: dict[str, Any] | str | None = None,
        attempt: int | None = None,
        *,
        prefix: Sequence[int] = (),
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        place: Callable[[Completion], tuple[int, int]] | None = None,
        logprobs: bool = False,
    ) -> Action:
        """One completion in the dialogue, recorded. `attempt`: its number, where a malformed one is tried again as the
        config's policy has it; a reply that is drawn again leaves the dialogue."""
        number = self._dialogues.index(dialogue)
        config = self.role(role)
        if number in self._full:
            raise self._no_room(role, dialogue)
        before = dialogue.position
        if text is not None:
            dialogue.user(text)
        dialogue.continue_assistant(prefix)
        max_tokens = config.max_tokens if max_tokens is None else min(max_tokens, config.max_tokens)
        room = self._engine(dialogue.model).max_context - dialogue.tokens
        if room < min(MIN_ROOM, max_tokens):
            self._full.add(number)
            raise self._no_room(role, dialogue)
        params = SamplingParams(
            temperature=self._context.temperature if config.trainable else self._context.frozen_temperature,
            top_p=self._context.top_p,
            max_tokens=min(max_tokens, room),
            seed=int(content_key(self._seed, number, self._calls[number])[:16], 16) >> 1,
            schema=constrain,
            logprobs=logprobs,
        )
        self._calls[number] += 1
        conversation = self._conversation(dialogue)
        slot, at = self._start()
        completion = await self._generate(dialogue, role, params, prefix, in_parts=place is None)
        completion = cut_at_stop(completion, stop, dialogue.chat.decode)
        # A look-ahead is a part of an answer, thoughts or not.
        said = completion.text if place else without_thoughts(dialogue.chat.reply_opening + completion.text)
        value, repairs, error = read_completion(completion, said, reader, must_end=place is None)
        start, end = place(completion) if place else dialogue.assistant(completion, parsed=not error)
        cut_by_context = completion.finish_reason == "context" or (
            completion.finish_reason == "length" and room < max_tokens
        )
        is_last = attempt is None or attempt + 1 == self._attempts
        if error and self.config.malformed == "redraw" and not (is_last or cut_by_context):
            dialogue.rewind(before)
            conversation = self._conversation(dialogue)
            start = end = len(dialogue.ids)
        state: ParseState = "malformed" if error else "free" if reader is free_text else "ok"
        self._finish(
            slot,
            ModelCall(
                role=role,
                conversation=conversation,
                start=start,
                end=end,
                text=completion.text,
                parse=state,
                repairs=repairs,
                error=error,
                attempt=attempt or 0,
                finish_reason=completion.finish_reason,
                prompt_tokens=completion.prompt_tokens,
                cached_tokens=completion.cached_tokens,
                new_tokens=completion.new_tokens,
                thought_tokens=0 if place else dialogue.thought_tokens(completion),
                at=at,
                seconds=time.monotonic() - self._started - at,
            ),
        )
        if cut_by_context:
            self._full.add(number)
        return Action(completion, said, error, value, cut_by_context)

    async def _generate(
        self, dialogue: Dialogue, role: str, params: SamplingParams, prefix: Sequence[int], in_parts: bool
    ) -> Completion:
        """The engine's completion of the dialogue. EngineError where it ran out of time or lacks log-probabilities.
        `in_parts`: a thought and what follows it may be sampled one after the other."""
        adapter = self._context.adapter if self.role(role).trainable else None
        messages = list(dialogue.messages)
        if prefix:
            messages.append({"role": "assistant", "content": dialogue.chat.decode(prefix)})
        engine = self._engine(dialogue.model)
        if in_parts:
            completion = await generate(engine, dialogue.ids, params, adapter, messages, dialogue.chat)
        else:
            completion = await engine.generate(dialogue.ids, params, adapter, messages)
        if completion.finish_reason == "timeout":  # the machine's fault, not the model's: to be done again
            raise EngineError(f"{role}: no end after {completion.new_tokens} tokens in the time one request may take")
        if params.logprobs and len(completion.logprobs or ()) != len(completion.ids):
            raise EngineError(f"{role}: log-probabilities are missing for some of {len(completion.ids)} tokens")
        return completion

    def _examples(self, config: RoleConfig, examples: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        return config.examples or examples

    @property
    def _attempts(self) -> int:
        return 1 + (self.config.reasks if self.config.malformed in ("reask", "redraw") else 0)

    def _no_room(self, role: str, dialogue: Dialogue) -> OutOfBudget:
        return OutOfBudget(role, f"its context of {self._engine(dialogue.model).max_context} tokens is full")

    def _engine(self, model: str) -> Engine:
        try:
            return self._engines[model]
        except KeyError:
            name, known = self.config.name, ", ".join(self._engines) or "none"
            raise UserError(
                f"{name}: solve asks a role that the model {model!r} plays, and open are the models of its roles "
                f"({known}); name the role in the `roles` of its SYSTEM"
            ) from None

    def _start(self) -> tuple[int, float]:
        if self._closed:
            raise asyncio.CancelledError
        self._events.append(None)
        return len(self._events) - 1, time.monotonic() - self._started

    def _finish(self, slot: int, event: Event) -> None:
        self._events[slot] = event
        if self._watch:
            self._watch(event)
