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
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ratchet.agents.core.output import Malformed, read_value
from ratchet.agents.core.tools import OutOfBudget, Tools, read_calls
from ratchet.agents.external.program import ProgramAnswer, ProgramError, Settings
from ratchet.agents.external.protocols import (
    Chat,
    Dialect,
    ProgramRequest,
    forced_tools,
    in_order_of_calls,
    read_turns,
    refused,
)
from ratchet.core.errors import UserError
from ratchet.core.http.openai import ONCE, ApiError
from ratchet.core.records import Passage, Question
from ratchet.core.text import short_line
from ratchet.inference.chat import Dialogue, Row
from ratchet.inference.completion import ChatTurn, Completion, FunctionCall
from ratchet.inference.engine import EngineError
from ratchet.inference.schemas import SchemaRefused, SchemaRejected, call_grammar, check_schema
from ratchet.inference.tool_calls import CALL_ID, CallForm, template_call


@dataclass(frozen=True)
class Position:
    """The end of an assistant's turn in a conversation."""

    dialogue: Dialogue
    row: Row
    tokens: int
    """Tokens of the row up to here."""
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

    def record(self, opening: Hashable, turns: Sequence[ChatTurn], position: Position) -> None:
        """Remember where a dialogue is after these turns, the last of which the model said."""
        self._positions.setdefault((opening, tuple(turns)), []).append(position)
        self._lengths.add(len(turns))


class Recording:
    """A program's model calls, searches and remarks in one trajectory."""

    def __init__(self, question: Question, tools: Tools, settings: Settings) -> None:
        self.question, self.tools, self.settings = question, tools, settings
        self.broken: asyncio.Future[ProgramAnswer] = asyncio.get_running_loop().create_future()
        """Has an error which ends the trajectory whatever the program does: its engine failed, or the config
        is wrong."""
        self.answer: asyncio.Future[ProgramAnswer] = asyncio.get_running_loop().create_future()
        """The answer of a program that came by itself."""
        self.found: dict[str, Passage] = {}
        self.asked = 0
        self.out_of_budget = ""
        """Why a request had no room, if one had none."""
        self.refusal = ""
        """Why the last request that was refused was."""
        self._history, self._call_numbers = History(), itertools.count(1)
        self._running, self._last = 0, time.monotonic()
        self._left_out = set[str]()

    async def wait_until_finished(self, seconds: float) -> ProgramAnswer:
        """The answer that the program sends. ProgramError after so long without a request, once there was one."""
        while True:
            begun = self.asked or self.found
            idle = time.monotonic() - self._last if begun and not self._running else 0.0
            if idle >= seconds:
                raise ProgramError(f"no request came for {seconds:g} s, which system.settings.timeout allows")
            done, _ = await asyncio.wait({self.answer}, timeout=seconds - idle)
            if done:
                return self.answer.result()

    async def chat(self, body: Dialect) -> dict[str, Any]:
        """One completion in the conversation that the request continues, as OpenAI's API gives it. Raises ApiError."""
        self._running, self.asked = self._running + 1, self.asked + 1
        param = "tool_choice"
        try:
            asked = body.chat()
            param = "response_format" if asked.request.response_format else param
            return await self._chat(asked)
        except ApiError as error:
            self.refusal = error.detail
            self.tools.note(self.settings.roles[0], f"a request was refused: {error.detail}")
            raise
        except OutOfBudget as error:
            self.out_of_budget = error.error
            raise ApiError(400, str(error), code="context_length_exceeded") from None
        except (SchemaRefused, SchemaRejected) as error:
            raise refused(param, short_line(str(error))) from None
        except (EngineError, UserError) as error:
            raise self._break(error) from None
        finally:
            self._running, self._last = self._running - 1, time.monotonic()

    def count(self, body: Dialect) -> int:
        """The number of tokens of a request's prompt. ApiError."""
        role, turns, tools = self._read(body.chat().request)
        position, new = self._history.find((role, json.dumps(tools, sort_keys=True)), turns)
        return _extended(self.tools.blank(role) if position is None else position.branch(), new, tools).tokens

    def _read(self, request: ProgramRequest) -> tuple[str, list[ChatTurn], list[dict[str, Any]]]:
        """(the role that a request asks, its turns, its tools). ApiError."""
        role = request.model if request.model in self.settings.roles else self.settings.roles[0]
        turns = list(in_order_of_calls(read_turns(request, self.settings.left_out_lines)))
        if turns[-1].role == "assistant" or [turn.role for turn in turns] == ["system"]:
            raise refused("messages", "the last one must be the user's or a tool's")
        return role, turns, request.tools or []

    async def _chat(self, asked: Chat) -> dict[str, Any]:
        request = asked.request
        role, turns, tools = self._read(request)
        chat, offered = self.tools.chat_format(role), json.dumps(tools, sort_keys=True)
        said = [text for turn in turns for text in (turn.text, *(call.arguments for call in turn.calls))]
        self.tools.check_size(role, [*said, offered])
        for name in sorted({*asked.left_out} - self._left_out):
            self._left_out.add(name)
            self.tools.note(role, f"the model was not told of the tool {name}, which is the service's own")
        schema = request.response_format.wanted if request.response_format else None
        if schema is not None:
            await asyncio.to_thread(check_schema, schema, not chat.is_text)
        callable_tools = [*tools, *asked.hidden]
        form, forced = chat.calls if callable_tools else None, forced_tools(asked)
        if callable_tools and form is None:
            raise refused("tools", f"the chat template of {role}'s model has no form for them")
        form, schema = None if request.tool_choice == "none" else form, None if forced else schema
        constrain = await asyncio.to_thread(_constraint, form, forced, callable_tools, schema)
        opening = (role, offered)
        position, new = self._history.find(opening, turns)
        foreign = any(turn.role == "assistant" for turn in new)
        goes_on = position is not None and position.is_end and not foreign
        begun = self.tools.blank(role) if position is None else position.dialogue if goes_on else position.branch()
        _extended(begun, new, tools)
        if not chat.places_system and any(turn.role == "system" for turn in (new if position else new[1:])):
            self.tools.note(role, "a system message was shown as the user's, since the template has no place for it")
        dialogue = begun if goes_on else self.tools.open(begun)
        one, stops = request.parallel_tool_calls is False, request.stop or ()
        stops = [stops] if isinstance(stops, str) else stops
        completion, plain, value = await self.tools.reply(
            dialogue,
            _reader(form, schema, callable_tools, one),
            constrain,
            request.max_completion_tokens or request.max_tokens,
            stops,
        )
        text, calls = value if isinstance(value, tuple) else (plain, ())
        if value is None and one and form is not None and completion.finish_reason == "stop":
            with suppress(ValueError):
                text, calls = form.read(plain, callable_tools)
        calls = calls[:1] if one else calls
        own = tuple(replace(call, id=CALL_ID.format(next(self._call_numbers))) for call in calls)
        reply = dialogue.turns[-1] = replace(dialogue.turns[-1], text=text.strip(), calls=own)
        if tools:
            dialogue.row.tool_calls = (dialogue.row.tool_calls or 0) + len(own)
        end = Position(dialogue, dialogue.row, len(dialogue.ids), len(dialogue.turns))
        self._history.record(opening, [*turns, reply], end)
        thoughts = dialogue.thought_tokens(completion)
        behind = chat.decode(completion.ids)[len(completion.text) :]
        stop = next((stop for stop in stops if stop and behind.startswith(stop)), None)
        return _response(request.model, text, reply, completion, thoughts, stop)

    def _break(self, error: Exception) -> ApiError:
        if not self.broken.done():
            self.broken.set_exception(error)
        return ApiError(502, str(error), headers=ONCE)

    def remark(self, text: str, reward: float | None = None) -> None:
        """Keep what the program says of its own work. `reward`: from 0 to 1."""
        said = text if reward is None else f"reward {reward:g}: {text}".removesuffix(": ")
        self.tools.note(self.settings.roles[0], said, reward)
        self._last = time.monotonic()

    async def search(self, query: str, k: int | None, offset: int = 0) -> list[Passage]:
        """Passages of the index, or of the config's source. ApiError where the service gives no answer."""
        k, role = k or self.settings.documents, self.settings.roles[0]
        self._running += 1
        try:
            result = await self.tools.try_search(role, query, k, self.settings.source, offset)
        except UserError as error:
            raise self._break(error) from None
        finally:
            self._running, self._last = self._running - 1, time.monotonic()
        if result.error:
            raise ApiError(502, result.error, headers=ONCE)
        self.found |= {passage.id: passage for passage in result.passages}
        return list(result.passages)


def _extended(dialogue: Dialogue, new: Sequence[ChatTurn], tools: Sequence[dict[str, Any]]) -> Dialogue:
    """The dialogue with further turns. ApiError where the template refuses them."""
    try:
        dialogue.extend(new, tools)
    except UserError as error:
        raise refused("messages", str(error)) from None
    return dialogue


def _constraint(
    form: CallForm | None,
    forced: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    schema: dict[str, Any] | None,
) -> dict[str, Any] | str | None:
    """What constrains a reply: a call of one of the tools `forced`, or the schema, beside which any of `tools` may be
    called. ApiError where no call can be forced."""
    if form is None or not (forced or schema is not None):
        return schema
    try:
        return call_grammar(form, forced or tools, schema)
    except SchemaRefused as error:
        if forced:
            raise refused("tool_choice", short_line(str(error))) from None
        return None  # what is read is held to the schema all the same


def _reader(
    form: CallForm | None, schema: dict[str, Any] | None, tools: Sequence[dict[str, Any]], one: bool
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


def _response(
    model: str, text: str, said: ChatTurn, completion: Completion, thoughts: int, stop: str | None
) -> dict[str, Any]:
    """As OpenAI's API gives it. `thoughts`: how many of the completion's tokens they are. `stop`: the text that ended
    it, which vLLM's API has a field for."""
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if said.calls else "")}
    if said.thought:
        message["reasoning_content"] = said.thought
    if said.calls:
        message["tool_calls"] = [template_call(call.name, call.arguments, call.id) for call in said.calls]
    ended = "tool_calls" if said.calls else "stop" if completion.finish_reason == "stop" else "length"
    prompt, new = completion.prompt_tokens, completion.new_tokens
    return {
        "id": f"chatcmpl-{time.time_ns():x}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": ended, "logprobs": None, "stop_reason": stop}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": thoughts},
        },
    }
