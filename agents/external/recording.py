"""One trajectory of a program: its model calls and searches, recorded as any system's are.

Which recorded conversation a request continues is told by its messages, from the first one on. Those up to an
assistant's turn that was recorded stand for its token ids; several agents of one program have different first messages,
and so different conversations. This is a tree: a request may also continue an earlier turn, which then has two
continuations.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ratchet.agents.core.output import Malformed, read_value
from ratchet.agents.core.tools import OutOfBudget, Tools, read_calls
from ratchet.agents.external.program import ProgramAnswer, ProgramError, Settings
from ratchet.agents.external.protocols import Chat, Dialect, Functions, Reply, forced_tools, read_turns, refused
from ratchet.core.errors import UserError
from ratchet.core.http.openai import ONCE, ApiError
from ratchet.core.records import Passage, Question
from ratchet.core.text import short_line
from ratchet.inference.chat import Dialogue, Row
from ratchet.inference.completion import ChatTurn, FunctionCall
from ratchet.inference.engine import EngineError
from ratchet.inference.schemas import SchemaRefused, SchemaRejected, call_grammar, check_schema
from ratchet.inference.tool_calls import CALL_ID, CallForm
from ratchet.retrieval.encoders.limits import end_of
from ratchet.retrieval.retriever import SourceError

if TYPE_CHECKING:
    import numpy as np

ENDED = "the trajectory has ended"


@dataclass(frozen=True)
class Position:
    """The end of an assistant's turn in a conversation, after so many tokens of a row."""

    dialogue: Dialogue
    row: Row
    tokens: int
    turns: int

    @property
    def is_end(self) -> bool:
        return self.dialogue.row is self.row and len(self.row.ids) == self.tokens

    def branch(self) -> Dialogue:
        return self.dialogue.branch(self.row, self.tokens, self.turns)


class History:
    """The recorded turns of a trajectory. `opening`: a dialogue's role and tools."""

    def __init__(self) -> None:
        self._positions: dict[tuple[Hashable, tuple[ChatTurn, ...]], list[Position]] = {}
        self._lengths: set[int] = set()
        """Numbers of turns under which there is a position: no other beginnings of a request are looked up."""

    def find(self, opening: Hashable, turns: Sequence[ChatTurn]) -> tuple[Position | None, list[ChatTurn]]:
        """The longest recorded beginning of a request's turns, and the turns that follow it. Of two equal beginnings,
        the one that nothing follows yet."""
        for length in sorted(self._lengths, reverse=True):
            if positions := self._positions.get((opening, tuple(turns[:length]))):
                position = next((position for position in positions if position.is_end), positions[0])
                return position, list(turns[length:])
        return None, list(turns)

    def record(self, opening: Hashable, turns: Sequence[ChatTurn], dialogue: Dialogue) -> None:
        """Remember where a dialogue is after these turns, the last of which the model said."""
        position = Position(dialogue, dialogue.row, len(dialogue.ids), len(dialogue.turns))
        self._positions.setdefault((opening, tuple(turns)), []).append(position)
        self._lengths.add(len(turns))


class Recording:
    """A program's model calls, searches and remarks in one trajectory."""

    def __init__(self, question: Question, tools: Tools, settings: Settings) -> None:
        self.question, self.tools, self.settings, self.role = question, tools, settings, settings.roles[0]
        self.ended: asyncio.Future[ProgramAnswer] = asyncio.get_running_loop().create_future()
        """Has the answer of a program that came by itself, or an error which ends the trajectory whatever the program
        does: its engine failed, or the config is wrong."""
        self.found: dict[str, Passage] = {}
        self.out_of_budget = ""
        """Why a request had no room, if one had none."""
        self.refusal = ""
        """Why the last request that was refused was."""
        self._history, self._call_numbers = History(), itertools.count(1)
        self._requests, self._closed = set[asyncio.Task[Any]](), False
        self._last: float | None = None
        """When the last request had its answer; None before there was one."""
        self._left_out = set[str]()

    async def watch(self, seconds: float) -> ProgramAnswer:
        """Raise ProgramError after so long without a request, once there was one."""
        idle = 0.0
        while idle < seconds:
            await asyncio.sleep(seconds - idle)
            idle = 0.0 if self._requests or self._last is None else time.monotonic() - self._last
        raise ProgramError(f"no request came for {seconds:g} s, which system.settings.timeout allows")

    async def close(self) -> None:
        """Cancel what still runs."""
        self._closed = True
        for task in self._requests:
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    @contextmanager
    def _request(self) -> Iterator[None]:
        """The work on a request: its errors are noted, and given to the program as ApiError."""
        task = asyncio.current_task()
        assert task is not None, "requests are worked on in tasks"
        if self._closed:  # since the request found it
            raise ApiError(409, ENDED)
        self._requests.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._closed:
                raise ApiError(409, ENDED) from None
            raise
        except ApiError as error:
            self.refusal = error.detail
            self.tools.note(self.role, f"a request was refused: {error.detail}")
            raise
        except OutOfBudget as error:
            self.out_of_budget = error.error
            raise ApiError(400, str(error), code="context_length_exceeded") from None
        except (EngineError, SourceError, UserError) as error:
            if not isinstance(error, SourceError) and not self.ended.done():
                self.ended.set_exception(error)
            raise ApiError(502, str(error), headers=ONCE) from None
        finally:
            self._requests.discard(task)
            self._last = time.monotonic()

    def count(self, body: Dialect) -> int:
        """The number of tokens of a request's prompt. ApiError."""
        asked, role, turns, opening = self._read(body)
        position, new = self._history.find(opening, turns)
        begun = self.tools.blank(role) if position is None else position.branch()
        return _extended(begun, new, asked.request.tools or []).tokens

    def _read(self, body: Dialect) -> tuple[Chat, str, list[ChatTurn], tuple[str, str]]:
        """(a request, the role that it asks, its turns, what tells its dialogue from others). ApiError."""
        body.check_fields()
        asked = body.chat()
        role = body.model if body.model in self.settings.roles else self.role
        turns = read_turns(asked.request, self.settings.left_out_lines)
        if turns[-1].role == "assistant" or [turn.role for turn in turns] == ["system"]:
            raise refused("messages", "the last one must be the user's or a tool's")
        return asked, role, turns, (role, json.dumps(asked.request.tools or [], sort_keys=True))

    async def chat(self, body: Dialect) -> Reply:
        """What the model says in the conversation that the request continues. Raises ApiError."""
        with self._request():
            asked, role, turns, opening = self._read(body)
            try:
                return await self._chat(asked, role, turns, opening)
            except (SchemaRefused, SchemaRejected) as error:
                where = "response_format" if asked.request.response_format else "tool_choice"
                raise refused(where, short_line(str(error))) from None

    async def _chat(self, asked: Chat, role: str, turns: list[ChatTurn], opening: tuple[str, str]) -> Reply:
        request, chat = asked.request, self.tools.chat_format(role)
        said = [text for turn in turns for text in (turn.text, *(call.arguments for call in turn.calls))]
        self.tools.check_size(role, [*said, *opening])
        for name in sorted({*asked.left_out} - self._left_out):
            self._left_out.add(name)
            self.tools.note(role, f"the model was not told of the tool {name}, which is the service's own")
        schema = request.response_format.wanted if request.response_format else None
        if schema is not None:
            await asyncio.to_thread(check_schema, schema, not chat.is_text)
        forced, tools = forced_tools(asked), [*(request.tools or []), *asked.hidden]
        form = chat.calls if tools else None
        if tools and form is None:
            way = "send none, or give it a model with tools (docs/guides/models.md#tools)"
            raise refused("tools", f"the chat template of {role}'s model has no form for them; {way}")
        form, schema = None if request.tool_choice == "none" else form, None if forced else schema
        constrain = await asyncio.to_thread(_constraint, form, forced, tools, schema)
        position, new = self._history.find(opening, turns)
        foreign = any(turn.role == "assistant" for turn in new)
        goes_on = position is not None and position.is_end and not foreign
        begun = self.tools.blank(role) if position is None else position.dialogue if goes_on else position.branch()
        _extended(begun, new, request.tools or [])
        if not chat.places_system and any(turn.role == "system" for turn in (new if position else new[1:])):
            self.tools.note(role, "a system message was shown as the user's, since the template has no place for it")
        dialogue = begun if goes_on else self.tools.open(begun)
        one = request.parallel_tool_calls is False
        stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        limit = request.max_completion_tokens or request.max_tokens
        reader = _reader(form, schema, tools, one)
        completion, plain, value = await self.tools.reply(dialogue, reader, constrain, limit, stops)
        text, calls = value if isinstance(value, tuple) else (plain, ())
        if value is None and one and form is not None and completion.finish_reason == "stop":
            with suppress(ValueError):
                text, calls = form.read(plain, tools)
        calls = calls[:1] if one else calls
        own = tuple(replace(call, id=CALL_ID.format(next(self._call_numbers))) for call in calls)
        turn = dialogue.turns[-1] = replace(dialogue.turns[-1], text=text.strip(), calls=own)
        if request.tools:
            dialogue.row.tool_calls = (dialogue.row.tool_calls or 0) + len(own)
        self._history.record(opening, [*turns, turn], dialogue)
        behind = chat.decode(completion.ids)[len(completion.text) :]
        stop = next((stop for stop in stops if stop and behind.startswith(stop)), None)
        return Reply(turn, text, completion, dialogue.thought_tokens(completion), stop)

    def remark(self, text: str, reward: float | None = None) -> None:
        """Keep what the program says of its own work. `reward`: from 0 to 1."""
        said = text if reward is None else f"reward {reward:g}: {text}".removesuffix(": ")
        self.tools.note(self.role, said, reward)
        self._last = time.monotonic()

    async def search(self, query: str, k: int | None, offset: int = 0) -> list[Passage]:
        """Passages of the index, or of the config's source. ApiError where the service gives no answer."""
        k = k or self.settings.documents
        with self._request():
            result = await self.tools.try_search(self.role, query, k, self.settings.source, offset)
        if result.error:
            raise ApiError(502, result.error, headers=ONCE)
        self.found |= {passage.id: passage for passage in result.passages}
        return list(result.passages)

    async def embed(self, texts: list[str]) -> np.ndarray:
        """Vectors of the config's embedder, float32 [texts, dimension]. ApiError, also for a text that it would cut."""
        with self._request():
            for number, text in enumerate(texts):
                _, left = await asyncio.to_thread(end_of, self.tools.embedder, text)
                if left:
                    raise refused(
                        f"input.{number}", f"the encoder does not read {left} of its tokens; send less at once"
                    )
            return await asyncio.to_thread(self.tools.embedder, texts)


def _extended(dialogue: Dialogue, new: Sequence[ChatTurn], tools: Functions) -> Dialogue:
    """The dialogue with further turns. ApiError where the template refuses them."""
    try:
        dialogue.extend(new, tools)
    except UserError as error:
        raise refused("messages", str(error)) from None
    return dialogue


def _constraint(
    form: CallForm | None, forced: Functions, tools: Functions, schema: dict[str, Any] | None
) -> dict[str, Any] | str | None:
    """What constrains a reply: a call of one of the tools `forced`, or the schema, beside which any of `tools` may be
    called. ApiError where no call can be forced."""
    try:
        return schema if form is None or not (forced or schema) else call_grammar(form, forced or tools, schema)
    except SchemaRefused as error:
        if forced:
            raise refused("tool_choice", short_line(str(error))) from None
        return None  # what is read is held to the schema all the same


def _reader(
    form: CallForm | None, schema: dict[str, Any] | None, tools: Functions, one: bool
) -> Callable[[str], Any] | None:
    """The reader of the model's words: (what is said before the calls, the calls). None where they may be anything.
    `one`: several calls are malformed."""

    def read(text: str) -> tuple[str, tuple[FunctionCall, ...]]:
        said, calls = read_calls(form, tools, text) if form is not None else (text, ())
        if one and len(calls) > 1:
            raise Malformed("several calls, and the request asks for one (parallel_tool_calls: false)")
        if schema is not None and not calls:
            read_value(text, schema)
        return said, calls

    return None if form is None and schema is None else read
