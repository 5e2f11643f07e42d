"""One episode: what a system does with a question by conversing with models and searching.

All is recorded here; a system writes no log. `agents.core.tools.Tools`, which systems get, adds further tools.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from pydantic import BaseModel

from ratchet.agents.core.exploration import ChoicePoint, Lookup, SearchFields, explored
from ratchet.agents.core.lookahead import cut_at_stop
from ratchet.agents.core.output import Malformed, Parsed, Schema, grammar, json_schema, read_output, without_bounds
from ratchet.agents.core.prompts import TASK, Prompts
from ratchet.agents.core.resources import Resources
from ratchet.agents.core.task import (
    Answer,
    Job,
    OutOfBudget,
    RunContext,
    Unparsed,
    labels_text,
    named_examples,
    task_text,
)
from ratchet.core.config import RoleConfig, SystemConfig
from ratchet.core.config.retrieval import INDEX
from ratchet.core.errors import UserError
from ratchet.core.records import (
    Conversation,
    Event,
    ModelCall,
    Note,
    ParseState,
    Passage,
    Question,
    Repair,
    Search,
    ToolCall,
    Trajectory,
    Turn,
    content_key,
)
from ratchet.core.words import padded_words
from ratchet.inference.chat import ChatFormat, Dialogue, Row
from ratchet.inference.chat_formats import with_thoughts
from ratchet.inference.completion import Completion, SamplingParams
from ratchet.inference.engine import Engine, EngineError, generate
from ratchet.inference.teacher import ask_teacher
from ratchet.inference.thoughts import without_thoughts
from ratchet.retrieval.retriever import Retriever, SourceError
from ratchet.retrieval.sources.source import ToolResult


class Record:
    """The record of one trajectory. Events may overlap, each between its `_start` and its `_finish`."""

    def __init__(self, watch: Callable[[Event], None] | None = None) -> None:
        """`watch` is called with each event as it ends."""
        self._watch = watch
        self._dialogues: list[Dialogue] = []
        self._calls: list[int] = []
        self._rows: dict[Row, Dialogue] = {}
        self._events: list[Event | None] = []
        self._started = time.monotonic()
        self._closed = False
        self.turns: list[Turn] = []

    def open(self, dialogue: Dialogue) -> Dialogue:
        """Record a dialogue from now on, and return it."""
        self._dialogues.append(dialogue)
        self._calls.append(0)
        self._conversation(dialogue)
        return dialogue

    def note(self, role: str, text: str, reward: float | None = None) -> None:
        """Leave a remark for whoever reads the log. `reward`: an agent's reward of its own work, from 0 to 1."""
        slot, at = self._start()
        self._finish(slot, Note(role=role, text=text, reward=reward, at=at))

    def turn(
        self,
        round: int,
        speaker: str,
        said: str,
        verdict: str = "",
        query: str = "",
        passages: Iterable[Passage] = (),
        scores: Mapping[str, float | None] | None = None,
    ) -> None:
        """Leave a debate's turn, or a loop's step, in the trajectory, for whoever reads it."""
        self.turns.append(
            Turn(
                round=round,
                speaker=speaker,
                query=query,
                passages=tuple(passage.id for passage in passages),
                said=said,
                verdict=verdict,
                scores=dict(scores or {}),
            )
        )

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
        """The texts that models were given to read: the messages that a reply follows, examples too."""
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


@dataclass(frozen=True)
class Action:
    """One completion and what its reader made of it."""

    completion: Completion
    text: str
    """Its text after the thoughts."""
    error: str
    """Why it is malformed, or ""."""
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


M = TypeVar("M", bound=BaseModel)

MIN_ROOM = 16
"""Tokens that must be left in a context for an action to be tried at all (or the role's max_tokens, if less)."""


class Episode(Record):
    """One trajectory's dialogues and searches, and its record.

    Calls may run at once (`Tools.gather`), each on a dialogue of its own. Events are kept in the order in which they
    began. A call's seed is a hash of the trajectory's seed, the dialogue's number and the call's number in that
    dialogue, so it does not depend on which of two concurrent calls came first.
    """

    def __init__(
        self,
        job: Job,
        config: SystemConfig,
        prompts: Prompts,
        engines: Mapping[str, Engine],
        retriever: Retriever,
        context: RunContext,
        resources: Resources,
        watch: Callable[[Event], None] | None,
        fields: SearchFields | None = None,
    ) -> None:
        super().__init__(watch)
        question = job.question
        task = (question.text, task_text(question), question.form, labels_text(question.labels))
        self.config, self._prompts, self._task = config, prompts, dict(zip(TASK, task, strict=True))
        self._engines, self._context, self._job, self._fields = engines, context, job, fields
        self._retriever, self._resources, self._question = retriever, resources, question
        self._full: set[int] = set()
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._acted: Counter[str] = Counter()
        self.sample = job.sample
        """The number of the attempt at the question."""
        self.so_far = Answer("")
        """The answer in hand, which the episode returns where a later action is malformed or out of budget. A system
        sets it where nothing runs at once, so that it does not depend on who is faster."""

    def role(self, name: str) -> RoleConfig:
        return self.config.role(name)

    def is_trained(self, role: str) -> bool:
        """Tell whether training learns from what the role does here."""
        return self.role(role).trainable and (role in self._job.learners or not self._job.learners)

    def chat_format(self, role: str) -> ChatFormat:
        """The tokenizer and chat template of the model that plays a role."""
        config = self.role(role)
        return with_thoughts(self._engine(config.model).format, config.thoughts)

    def prompt(self, slot: str, **values: str) -> str:
        """The filled-in message of a slot of the system's prompts, or of the config's in their place. `question`,
        `task`, `form` and `labels` are those of the episode unless `values` has them."""
        return self._prompts[slot].fill({**self._task, **values})

    def begin(self, role: str, slot: str = "", **values: str) -> tuple[Dialogue, str]:
        """A new conversation of a role, and what is said in it first: the prompts `<slot>.system` and `<slot>.user`,
        filled in with these values. `slot`: by default the role's name."""
        slot = slot or role
        return self.dialogue(role, self.prompt(f"{slot}.system", **values)), self.prompt(f"{slot}.user", **values)

    def dialogue(self, role: str, system: str | None = None, examples: Sequence[tuple[str, str]] = ()) -> Dialogue:
        """Open a role's conversation; every `ask` on it extends it. An empty `system` message is left out; `examples`
        are worked (user, assistant) exchanges before the first, and the config may put others in their place."""
        config = self.role(role)
        dialogue = Dialogue(role, config.model, self.chat_format(role), self.is_trained(role), system or None)
        for user, assistant in named_examples(config.examples, self._question.labels) or examples:
            dialogue.example(user, assistant)
        return self.open(dialogue)

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
        if narrower := self._narrower(role, schema):
            constrain = grammar(narrower, self.role(role).max_tokens)
        expected: Schema = without_bounds(schema)
        # A closed model is asked for JSON of the schema, which nothing holds it to.
        held_to = None if self._speaker(role, dialogue).format.is_text else constrain

        def reader(said: str) -> Parsed:
            return read_output(said, expected, held_to)

        act = await self._act_again(dialogue, role, text, reader, "reask_json.user", constrain)
        if act.error and act.full:
            raise self._no_room(role, dialogue)
        if act.error:
            raise Unparsed(role, act.error)
        return act.value

    def _narrower(self, role: str, schema: Schema) -> dict[str, Any] | None:
        """The schema of a role's next action as the job's rules narrow it; None where they leave it as it is."""
        turn = self._acted[role]
        self._acted[role] += 1
        if not self._job.rules:
            return None
        searches = tuple(
            Lookup(" ".join(map(str, event.arguments.values())), event.passages)
            if isinstance(event, ToolCall)
            else Lookup(event.query, event.passages)
            for event in self.events
            if isinstance(event, Search | ToolCall)
        )
        point = ChoicePoint(role, turn, json_schema(schema), self._question, searches, self._job.gold, self._fields)
        return explored(self._job.rules, point)

    async def search(self, role: str, query: str, k: int, offset: int = 0, source: str = INDEX) -> list[Passage]:
        """The passages of ranks offset..offset+k-1, as many as the source has. `source`: "index", or a name under
        `sources` in the config. Raises UserError for another, SourceError where a service cannot be reached."""
        slot, at = self._start()
        passages, cut, problem = list[Passage](), "", None
        try:
            if source == INDEX:
                passages = await asyncio.to_thread(self._retriever.search, query, k, offset)
            else:
                result = ToolResult(tuple(await self._resources.source(source).search(query, k, offset)))
                fitted, cut = self._resources.fit(self._engine(self.role(role).model), source, result)
                passages = list(fitted.passages)
        except SourceError as error:
            problem = error
        self._finish(
            slot,
            Search(
                role=role,
                source=source,
                query=query,
                k=k,
                offset=offset,
                passages=tuple(passages),
                error="" if problem is None else str(problem),
                at=at,
                seconds=self.seconds - at,
            ),
        )
        if problem is not None:
            raise problem
        if cut:
            self.note(role, cut)
        return passages

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
        """The first readable action, or the last that the config's policy allows. `slot`: the prompt for an error."""
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
        # A branch may still wait for a reply here where another one failed (`agents.core.labels`).
        async with self._turns[number]:
            config = self.role(role)
            if number in self._full:
                raise self._no_room(role, dialogue)
            if text is not None and dialogue.waits:
                raise EngineError(f"{role}: the reply to its last message never came")
            before = dialogue.position
            if text is not None:
                dialogue.user(text)
            dialogue.continue_assistant(prefix)
            max_tokens = config.max_tokens if max_tokens is None else min(max_tokens, config.max_tokens)
            room = self._max_context(role, dialogue) - dialogue.tokens
            if room < min(MIN_ROOM, max_tokens):
                self._full.add(number)
                raise self._no_room(role, dialogue)
            temperature = self._context.temperature if config.trainable else self._context.frozen_temperature
            if attempt and self.config.malformed == "redraw":
                temperature = max(temperature, min(temperature + 0.1 * attempt, 0.5))
            params = SamplingParams(
                temperature=temperature,
                top_p=self._context.top_p,
                max_tokens=min(max_tokens, room),
                seed=int(content_key(self._job.seed, number, self._calls[number])[:16], 16) >> 1,
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
                    seconds=self.seconds - at,
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
        engine, own = self._speaker(role, dialogue), self._engine(dialogue.model)
        adapter = self._context.adapter if self.role(role).trainable and not self._is_taught(role) else None
        messages = list(dialogue.messages)
        if prefix:
            messages.append({"role": "assistant", "content": dialogue.chat.decode(prefix)})
        if engine is not own and engine.format.digest != own.format.digest:
            completion = await ask_teacher(engine, dialogue, params, whole_reply=in_parts)
        elif in_parts:
            completion = await generate(engine, dialogue.ids, params, adapter, messages, dialogue.chat)
        else:
            completion = await engine.generate(dialogue.ids, params, adapter, messages)
        if completion.finish_reason == "timeout":  # the machine's fault, not the model's: to be done again
            raise EngineError(f"{role}: no end after {completion.new_tokens} tokens in the time one request may take")
        if params.logprobs and len(completion.logprobs or ()) != len(completion.ids):
            raise EngineError(f"{role}: log-probabilities are missing for some of {len(completion.ids)} tokens")
        return completion

    @property
    def _attempts(self) -> int:
        return 1 + (self.config.reasks if self.config.malformed in ("reask", "redraw") else 0)

    def _no_room(self, role: str, dialogue: Dialogue) -> OutOfBudget:
        return OutOfBudget(role, f"its context of {self._max_context(role, dialogue)} tokens is full")

    def _is_taught(self, role: str) -> bool:
        return bool(self._job.teacher) and self.role(role).trainable

    def _speaker(self, role: str, dialogue: Dialogue) -> Engine:
        """The engine that answers for a role: the teacher's where it plays the role, or the dialogue's own."""
        return self._engine(self._job.teacher if self._is_taught(role) else dialogue.model)

    def _max_context(self, role: str, dialogue: Dialogue) -> int:
        return min(self._engine(dialogue.model).max_context, self._speaker(role, dialogue).max_context)

    def _engine(self, model: str) -> Engine:
        try:
            return self._engines[model]
        except KeyError:
            name, known = self.config.name, ", ".join(self._engines) or "none"
            raise UserError(
                f"{name}: solve asks a role that the model {model!r} plays, and open are the models of its roles "
                f"({known}); name the role in the `roles` of its SYSTEM"
            ) from None


RUN = 8
"""Words of a document in a row that tell that it was shown."""
ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrt])")


def shown_passages(passages: Iterable[Passage], said: Iterable[str]) -> tuple[Passage, ...]:
    """The passages of which a run of `RUN` words, or all of a shorter one, is in one of the texts, plain or in JSON."""
    prompts = [padded_words(ESCAPED.sub(lambda one: chr(int(one[1], 16)) if one[1] else " ", text)) for text in said]
    return tuple(passage for passage in passages if any(_is_in(passage, prompt) for prompt in prompts))


def _is_in(passage: Passage, prompt: str) -> bool:
    words = padded_words(passage.text).split() or padded_words(passage.title).split()
    last = max(len(words) - RUN, 0)
    runs = {min(at, last) for at in range(0, len(words), RUN)}
    return any(f" {' '.join(words[at : at + RUN])} " in prompt for at in runs)


def why_cut_off(question: Question, trajectory: Trajectory) -> str:
    """Why the answer is not whole: it ends where a reply was cut off, or is empty as the last reply could not be read;
    "" else. A label is whole wherever its reply ended."""
    text, calls = trajectory.answer.strip(), trajectory.model_calls
    if not text:
        last = calls[-1] if calls else None
        return f"{last.role}: {last.error}" if last is not None and last.parse == "malformed" else ""
    if question.labels:
        return ""
    ending = [call for call in calls if call.text.rstrip().endswith(text)]
    if any(call.parse != "malformed" for call in ending):
        return ""
    return next((f"{call.role}: {call.error}" for call in ending if call.finish_reason != "stop"), "")
