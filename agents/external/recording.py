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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ratchet.agents.core.output import read_output, without_bounds
from ratchet.agents.core.tools import OutOfBudget, Tools, read_calls
from ratchet.agents.external.program import ProgramAnswer, ProgramError, Settings
from ratchet.agents.external.protocols import (
    ProgramRequest,
    forced_tools,
    in_order_of_calls,
    read_turns,
    refused,
    storable,
)
from ratchet.core.errors import UserError
from ratchet.core.http.openai import ONCE, ApiError
from ratchet.core.records import Passage, Question
from ratchet.core.text import short_line
from ratchet.inference.chat import Dialogue, Row
from ratchet.inference.completion import ChatTurn, Completion
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
        self._history, self._call_numbers = History(), itertools.count(1)
        self._running, self._last = 0, time.monotonic()

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

    async def chat(self, request: ProgramRequest) -> dict[str, Any]:
        """One completion in the conversation that the request continues, as OpenAI's API gives it. Raises ApiError."""
        self._running, self.asked = self._running + 1, self.asked + 1
        try:
            return await self._chat(request)
        except ApiError as error:
            self.tools.note(self.settings.roles[0], f"a request was refused: {error.detail}")
            raise
        except OutOfBudget as error:
            self.out_of_budget = error.error
            raise ApiError(400, str(error), code="context_length_exceeded") from None
        except (SchemaRefused, SchemaRejected) as error:
            param = "response_format" if request.response_format else "tool_choice"
            raise refused(param, short_line(str(error))) from None
        except (EngineError, UserError) as error:
            raise self._break(error) from None
        finally:
            self._running, self._last = self._running - 1, time.monotonic()

    async def _chat(self, request: ProgramRequest) -> dict[str, Any]:
        role = request.model if request.model in self.settings.roles else self.settings.roles[0]
        chat = self.tools.chat_format(role)
        turns, tools = list(in_order_of_calls(read_turns(request))), storable(request.tools or [], "tools")
        offered = json.dumps(tools, sort_keys=True)
        said = [text for turn in turns for text in (turn.text, *(call.arguments for call in turn.calls))]
        self.tools.check_size(role, [*said, offered])
        schema = request.response_format.wanted if request.response_format else None
        if schema is not None:
            await asyncio.to_thread(check_schema, schema, not chat.is_text)
        form = chat.calls if tools else None
        if tools and form is None:
            raise refused("tools", f"the chat template of {role}'s model has no form for them")
        if tools and schema is not None:
            raise refused("response_format", "leave it out where there are tools")
        constrain: dict[str, Any] | str | None = schema
        if (forced := forced_tools(request)) and form is not None:
            try:
                constrain = await asyncio.to_thread(call_grammar, form, forced)
            except SchemaRefused as error:
                raise refused("tool_choice", short_line(str(error))) from None
        opening = (role, offered)
        position, new = self._history.find(opening, turns)
        if not new or new[-1].role not in ("user", "tool"):
            raise refused("messages", "the last one must be the user's or a tool's")
        foreign = any(turn.role == "assistant" for turn in new)
        goes_on = position is not None and position.is_end and not foreign
        begun = self.tools.blank(role) if position is None else position.dialogue if goes_on else position.branch()
        try:
            begun.extend(new, tools)
        except UserError as error:
            raise refused("messages", str(error)) from None
        dialogue = begun if goes_on else self.tools.open(begun)
        completion, plain, value = await self.tools.reply(
            dialogue,
            _reader(None if request.tool_choice == "none" else form, schema, tools),
            constrain,
            request.max_completion_tokens or request.max_tokens,
            [request.stop] if isinstance(request.stop, str) else request.stop or (),
        )
        text, calls = value if form and value and not isinstance(value, str) else (plain, ())
        own = tuple(replace(call, id=CALL_ID.format(next(self._call_numbers))) for call in calls)
        reply = dialogue.turns[-1] = replace(dialogue.turns[-1], text=text.strip(), calls=own)
        end = Position(dialogue, dialogue.row, len(dialogue.ids), len(dialogue.turns))
        self._history.record(opening, [*turns, reply], end)
        thoughts = dialogue.thought_tokens(completion)
        return _response(request.model, text, reply, completion, thoughts)

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


def _reader(
    form: CallForm | None, schema: dict[str, Any] | None, tools: Sequence[dict[str, Any]]
) -> Callable[[str], Any] | None:
    """The reader of the model's words; None where they may be anything."""
    if form is not None:
        return partial(read_calls, form, tools)
    return None if schema is None else lambda text: read_output(text, schema, without_bounds(schema)).value


def _response(model: str, text: str, said: ChatTurn, completion: Completion, thoughts: int) -> dict[str, Any]:
    """As OpenAI's API gives it. `thoughts`: how many of the completion's tokens they are."""
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
        "choices": [{"index": 0, "message": message, "finish_reason": ended, "logprobs": None}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": thoughts},
        },
    }
