"""The requests of programs, in three services' protocols: read, translated to one form, and answered in their own.

OpenAI's chat completions (POST /v1/chat/completions) are the form that the others are translated to: OpenAI's Responses
API (POST /v1/responses) and Anthropic's Messages API (POST /v1/messages), as far as agents with tools need them. Each
request class has `chat`, the same request for chat completions, which raises ApiError for what has no equivalent;
`answer`, a chat completion in its own protocol; and `events`, that as the events of a stream. The engine gives an
answer as a whole, so the events come all at once.

Parameters that are not named here have no effect. Thoughts of earlier turns are left out, since the gateway has the
model's own. Nothing is kept between requests: `previous_response_id` is refused.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ratchet.core.errors import fault_in
from ratchet.core.http.openai import ApiError, ChatMessage, ChatRequest
from ratchet.core.text import read_json, storable_value
from ratchet.inference.completion import ChatTurn, FunctionCall
from ratchet.inference.tool_calls import NAME, template_call

Answer = dict[str, Any]


# Chat completions


class SentFunction(BaseModel):
    """Name and arguments of a tool's call in a request."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class SentCall(BaseModel):
    """A tool's call in a request."""

    model_config = ConfigDict(extra="allow")

    id: str = ""
    function: SentFunction


class ProgramMessage(ChatMessage):
    """A message with what belongs to tools."""

    tool_calls: list[SentCall] | None = None
    tool_call_id: str | None = None


class ResponseFormat(BaseModel):
    """The form of the answer that a request asks for."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: dict[str, Any] | None = None

    @property
    def wanted(self) -> dict[str, Any] | None:
        """The JSON schema; None for free text."""
        if self.type == "json_schema":
            return (self.json_schema or {}).get("schema") or {"type": "object"}
        return {"type": "object"} if self.type == "json_object" else None


class ProgramRequest(ChatRequest):
    """The body of POST /v1/chat/completions, with what a gateway reads of it."""

    messages: list[ProgramMessage] = Field(min_length=1)  # type: ignore[assignment]  # narrower, and read only
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_tokens: int | None = Field(None, gt=0)
    max_completion_tokens: int | None = Field(None, gt=0)
    stop: str | list[str] | None = None
    response_format: ResponseFormat | None = None
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None

    def chat(self) -> ProgramRequest:
        return self

    def answer(self, completion: Answer) -> Answer:
        return completion

    def events(self, completion: Answer) -> Iterator[Answer]:
        choice, usage = completion["choices"][0], completion.pop("usage")
        head = {**completion, "object": "chat.completion.chunk"}
        message = choice["message"]
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        for delta, reason in ((message, None), ({}, choice["finish_reason"])):
            yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}
        if self.stream_options is not None and self.stream_options.include_usage:
            yield {**head, "choices": [], "usage": usage}


def read_turns(request: ProgramRequest) -> Iterator[ChatTurn]:
    """The messages of a request. What the model said is compared without the blanks around it, which programs strip."""
    for number, message in enumerate(request.messages):
        text, where = message.text(f"messages.{number}.content"), f"messages.{number}.tool_calls"
        calls = [
            FunctionCall.of(call.function.name, storable(call.function.arguments, where), call.id)
            for call in message.tool_calls or ()
        ]
        if message.role == "function":
            raise ApiError(400, f"messages.{number}: send a tool's result as a message of role tool", param="messages")
        if message.role == "assistant":
            yield ChatTurn("assistant", text.strip(), calls=tuple(calls))
        else:
            role = "system" if message.role == "developer" else message.role
            yield ChatTurn(role, text, answers=message.tool_call_id or "")


def in_order_of_calls(turns: Iterable[ChatTurn]) -> Iterator[ChatTurn]:
    """The turns, with the results of a turn's calls in the order of the calls, since a chat template may tell which
    result is whose by their order alone. ApiError where they are not exactly one for each call, named by its id."""
    calls, results = dict[str, FunctionCall](), dict[str, ChatTurn]()
    for turn in [*turns, None]:
        if turn is not None and turn.role == "tool":
            if turn.answers not in calls or turn.answers in results:
                what = "a second result of" if turn.answers in results else "a result of no call before it,"
                raise refused("messages", f"{what} tool_call_id {turn.answers[:100]!r}")
            results[turn.answers] = turn
            continue
        if missing := [id for id in calls if id not in results]:
            raise refused("messages", f"no message of role tool has the result of the call {missing[0][:100]!r}")
        yield from (results[id] for id in calls)
        calls, results = {call.id: call for call in turn.calls} if turn is not None else {}, {}
        if "" in calls or (turn is not None and len(calls) < len(turn.calls)):
            raise refused("messages", "each of tool_calls needs an id of its own")
        if turn is not None:
            yield turn


def storable(value: Any, where: str) -> Any:
    """The value as a template can be given it and JSON can hold it. Raises ApiError, which names the field."""
    try:
        return storable_value(value)
    except ValueError as error:
        raise refused(where, str(error)) from None


def refused(where: str, problem: str) -> ApiError:
    """The error of a request, which names the field."""
    return ApiError(400, f"{where}: {problem}", param=where)


def forced_tools(request: ProgramRequest) -> list[dict[str, Any]]:
    """The tools of which the model must call one; none where it may say what it wants. ApiError."""
    for number, tool in enumerate(request.tools or ()):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not NAME.fullmatch(name):
            where = f"tools.{number}.function.name"
            fault = fault_in(name, NAME.fullmatch) if isinstance(name, str) else "there is no name"
            raise ApiError(400, f"{where}: {fault}; expected letters, digits and any of _.:/-", param="tools")
    choice, tools = request.tool_choice, request.tools or []
    if choice in (None, "auto", "none"):
        return []
    named = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if isinstance(named, dict):
        tools = [tool for tool in tools if tool["function"]["name"] == named.get("name")]
    elif choice != "required":
        raise refused("tool_choice", "expected auto, none, required, or one function by its name")
    if not tools:
        raise refused("tool_choice", "tools has no function of this name")
    return tools


# What the other two share: messages of chat completions, made part by part


def chat_request(where: str, **fields: Any) -> ProgramRequest:
    """A checked request. ApiError that names what is wrong with it; `where`: what its messages are called."""
    try:
        return ProgramRequest.model_validate({key: value for key, value in fields.items() if value})
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"])) or "the request"
        raise refused(path.replace("messages", where, 1), first["msg"]) from None


def text_of(content: Any, where: str) -> str:
    """The text of a content, which is a text or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise refused(where, "expected a text or a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else part
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise refused(where, f"a part of type {str(kind)[:50]!r} cannot be read; send text")
        texts.append(part["text"])
    return "\n".join(texts)


def functions(
    tools: Sequence[Mapping[str, Any]] | None, kind: str, parameters: str, refusal: str, default: str | None = None
) -> list[dict[str, Any]]:
    """The tools of a request as chat completions have them. `kind` is their type, `parameters` the field with the
    schema of their arguments; any other type is refused."""
    made = []
    for number, tool in enumerate(tools or ()):
        if tool.get("type", default) != kind:
            raise refused(f"tools.{number}", refusal)
        given = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get(parameters)}
        given = {key: value for key, value in given.items() if value is not None}
        made.append({"type": "function", "function": given})
    return made


def function_choice(name: Any) -> dict[str, Any]:
    """The choice of one function."""
    return {"type": "function", "function": {"name": name}}


def add_call(messages: list[dict[str, Any]], call: dict[str, Any]) -> None:
    """Put a call into the assistant's message that it belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


# Anthropic's Messages

NO_SCHEMA = "only tools with an input_schema can be called"
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
BESIDE_TEXT = ("tool_use", "tool_result", "thinking", "redacted_thinking")
STOPS = {"tool_calls": "tool_use", "stop": "end_turn", "length": "max_tokens"}
"""A completion's finish_reason to Anthropic's stop_reason."""


class SentMessage(BaseModel):
    """One message of a request."""

    role: Literal["user", "assistant"]
    content: str | list[dict[str, Any]]


class MessagesRequest(BaseModel):
    """The body of POST /v1/messages."""

    model_config = ConfigDict(extra="allow")

    model: str
    max_tokens: int = Field(gt=0)
    messages: list[SentMessage] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None

    def chat(self) -> ProgramRequest:
        messages: list[dict[str, Any]] = []
        if system := text_of(self.system, "system"):
            messages.append({"role": "system", "content": system})
        for number, message in enumerate(self.messages):
            messages += _chat_messages(message, f"messages.{number}.content")
        choice: Any = None
        if self.tool_choice is not None:
            kind = str(self.tool_choice.get("type"))
            choice = function_choice(self.tool_choice.get("name")) if kind == "tool" else CHOICES.get(kind, kind)
        return chat_request(
            "messages",
            model=self.model,
            messages=messages,
            tools=functions(self.tools, "custom", "input_schema", NO_SCHEMA, default="custom"),
            tool_choice=choice,
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            stream=self.stream,
        )

    def answer(self, completion: Answer) -> Answer:
        choice, usage = completion["choices"][0], completion["usage"]
        message, cached = choice["message"], usage["prompt_tokens_details"]["cached_tokens"]
        content: list[dict[str, Any]] = []
        if thought := message.get("reasoning_content"):
            content.append({"type": "thinking", "thinking": thought, "signature": ""})
        if message["content"]:
            content.append({"type": "text", "text": message["content"]})
        for call in message.get("tool_calls", ()):
            function = call["function"]
            given = read_json(function["arguments"])
            content.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
        return {
            "id": f"msg_{completion['id'].partition('-')[2]}",
            "type": "message",
            "role": "assistant",
            "model": completion["model"],
            "content": content,
            "stop_reason": STOPS[choice["finish_reason"]],
            "stop_sequence": None,
            "usage": {
                "input_tokens": usage["prompt_tokens"] - cached,
                "cache_read_input_tokens": cached,
                "cache_creation_input_tokens": 0,
                "output_tokens": usage["completion_tokens"],
            },
        }

    def events(self, completion: Answer) -> Iterator[Answer]:
        answer = self.answer(completion)
        begun = {**answer, "content": [], "stop_reason": None, "usage": {**answer["usage"], "output_tokens": 0}}
        yield {"type": "message_start", "message": begun}
        for index, block in enumerate(answer["content"]):
            key, empty = block["type"], block | {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block.get("input"))}
            if key != "tool_use":
                empty, delta = block | {key: ""}, {"type": f"{key}_delta", key: block[key]}
            yield {"type": "content_block_start", "index": index, "content_block": empty}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        ended = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": answer["usage"]["output_tokens"]}}
        yield {"type": "message_stop"}


def _chat_messages(message: SentMessage, where: str) -> list[dict[str, Any]]:
    """A message as those of chat completions: results of tools come before the text beside them."""
    blocks = [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    messages: list[dict[str, Any]] = []
    texts = [block for block in blocks if block.get("type") not in BESIDE_TEXT]
    for number, block in enumerate(blocks):
        if block.get("type") == "tool_result":
            content = text_of(block.get("content"), f"{where}.{number}.content")
            messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})
    if texts or not messages:
        messages.append({"role": message.role, "content": text_of(texts, where)})
    for block in blocks:
        if block.get("type") == "tool_use":
            add_call(messages, template_call(block.get("name"), block.get("input"), block.get("id")))
    return messages


# OpenAI's Responses

NO_FUNCTION = "only functions can be called; serve other tools as functions"


class ResponsesRequest(BaseModel):
    """The body of POST /v1/responses."""

    model_config = ConfigDict(extra="allow")

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_output_tokens: int | None = Field(None, gt=0)
    text: dict[str, Any] | None = None
    stream: bool | None = None
    previous_response_id: str | None = None

    def chat(self) -> ProgramRequest:
        if self.previous_response_id is not None:
            raise refused("previous_response_id", "the gateway keeps no responses; send the whole input")
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        for number, item in enumerate(items):
            where, kind = f"input.{number}", item.get("type", "message")
            if kind == "message":
                messages.append({"role": item.get("role"), "content": text_of(item.get("content"), f"{where}.content")})
            elif kind == "function_call":
                add_call(messages, template_call(item.get("name"), item.get("arguments"), item.get("call_id")))
            elif kind == "function_call_output":
                output = text_of(item.get("output"), f"{where}.output")
                messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
            elif kind != "reasoning":
                raise refused(where, f"an item of type {str(kind)[:50]!r} cannot be read")
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "function":
            choice = function_choice(choice.get("name"))
        form = (self.text or {}).get("format") or {}
        if isinstance(form, dict) and form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
        return chat_request(
            "input",
            model=self.model,
            messages=messages,
            tools=functions(self.tools, "function", "parameters", NO_FUNCTION),
            tool_choice=choice,
            max_tokens=self.max_output_tokens,
            response_format=form,
            stream=self.stream,
        )

    def answer(self, completion: Answer) -> Answer:
        choice, usage, number = completion["choices"][0], completion["usage"], completion["id"].partition("-")[2]
        message, cut = choice["message"], choice["finish_reason"] == "length"
        status = "incomplete" if cut else "completed"
        output: list[dict[str, Any]] = []
        if thought := message.get("reasoning_content"):
            content = [{"type": "reasoning_text", "text": thought}]
            output.append({"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": content})
        if message["content"] or not message.get("tool_calls"):
            content = [{"type": "output_text", "text": message["content"] or "", "annotations": [], "logprobs": []}]
            output.append(
                {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": status, "content": content}
            )
        for call in message.get("tool_calls", ()):
            output.append(
                {
                    "type": "function_call",
                    "id": f"fc_{number}_{call['id']}",
                    "call_id": call["id"],
                    "status": "completed",
                    **call["function"],
                }
            )
        return {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": completion["created"],
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": self.instructions,
            "model": completion["model"],
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": self.tool_choice or "auto",
            "tools": self.tools or [],
            "metadata": {},
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"],
                "total_tokens": usage["total_tokens"],
            },
        }

    def events(self, completion: Answer) -> Iterator[Answer]:
        numbers = itertools.count()
        for event in _events(self.answer(completion)):
            yield {**event, "sequence_number": next(numbers)}


def _events(answer: Answer) -> Iterator[Answer]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(answer["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            [part] = item["content"]
            part_at = {**at, "content_index": 0}
            yield _item_added(index, {**item, "status": "in_progress", "content": []})
            yield {"type": "response.content_part.added", **part_at, "part": {**part, "text": ""}}
            yield {"type": "response.output_text.delta", **part_at, "delta": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **part_at, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **part_at, "part": part}
        elif item["type"] == "function_call":
            yield _item_added(index, {**item, "status": "in_progress", "arguments": ""})
            said = item["arguments"]
            yield {"type": "response.function_call_arguments.delta", **at, "delta": said}
            yield {"type": "response.function_call_arguments.done", **at, "name": item["name"], "arguments": said}
        else:
            yield _item_added(index, item)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{answer['status']}", "response": answer}


def _item_added(index: int, item: Answer) -> Answer:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


ServiceRequest = ProgramRequest | MessagesRequest | ResponsesRequest
"""A request in one of the gateway's protocols."""
