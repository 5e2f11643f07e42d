"""The gateway's other protocols: their requests become one for chat completions, and its answer theirs.

OpenAI's Responses API (POST /v1/responses) and Anthropic's Messages API (POST /v1/messages), as far as agents with
tools need them. Thoughts of earlier turns are left out, since the gateway has the model's own. Nothing is kept between
requests: `previous_response_id` is refused.
"""

from __future__ import annotations

import itertools
import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ratchet.agents.external.recording import ProgramRequest, refused
from ratchet.core.text import read_json
from ratchet.inference.tool_calls import template_call

Answer = dict[str, Any]
TEXTS = ("text", "input_text", "output_text")


class Protocol(typing.Protocol):
    """A request in one of the gateway's protocols, and how it is answered."""

    def chat(self) -> ProgramRequest:
        """The same for chat completions. Raises ApiError for what has no equivalent."""
        ...

    def answer(self, completion: Answer) -> Answer:
        """A chat completion in this protocol."""
        ...

    def events(self, completion: Answer) -> Iterator[Answer]:
        """The same as the events of a stream."""
        ...


def chat_request(where: str, **fields: Any) -> ProgramRequest:
    """A checked request. ApiError that names what is wrong with it; `where`: what its messages are called."""
    try:
        return ProgramRequest.model_validate({key: value for key, value in fields.items() if value is not None})
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
        if not isinstance(part, Mapping) or part.get("type") not in TEXTS or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise refused(where, f"a part of type {str(kind)[:50]!r} cannot be read; send text")
        texts.append(part["text"])
    return "\n".join(texts)


def tool(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """A function as chat completions have it."""
    given = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in given.items() if value is not None}}


def add_call(messages: list[dict[str, Any]], call: dict[str, Any]) -> None:
    """Put a call into the assistant's message that it belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


CHOICES = {"auto": "auto", "any": "required", "none": "none"}
BESIDE_TEXT = ("tool_use", "tool_result", "thinking", "redacted_thinking")
STOPS = {"tool_calls": "tool_use", "stop": "end_turn", "length": "max_tokens"}
"""Of a completion's finish_reason."""


class SentMessage(BaseModel):
    """One message of a request."""

    role: Literal["user", "assistant"]
    content: str | list[dict[str, Any]]


class MessagesRequest(BaseModel):
    """The body of POST /v1/messages. Parameters that are not named here have no effect."""

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
        """See `agents.external.protocols.Protocol`."""
        messages: list[dict[str, Any]] = []
        if system := text_of(self.system, "system"):
            messages.append({"role": "system", "content": system})
        for number, message in enumerate(self.messages):
            messages += _chat_messages(message, f"messages.{number}.content")
        tools = []
        for number, one in enumerate(self.tools or ()):
            if one.get("type", "custom") != "custom":
                raise refused(f"tools.{number}", "only tools with an input_schema can be called")
            tools.append(tool(one.get("name"), one.get("description"), one.get("input_schema")))
        choice: Any = None
        if self.tool_choice is not None:
            kind = str(self.tool_choice.get("type"))
            named = {"type": "function", "function": {"name": self.tool_choice.get("name")}}
            choice = named if kind == "tool" else CHOICES.get(kind, kind)
        return chat_request(
            "messages",
            model=self.model,
            messages=messages,
            tools=tools or None,
            tool_choice=choice,
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            stream=self.stream,
        )

    def answer(self, completion: Answer) -> Answer:
        """See `agents.external.protocols.Protocol`."""
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
        """See `agents.external.protocols.Protocol`."""
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


class ResponsesRequest(BaseModel):
    """The body of POST /v1/responses. Parameters that are not named here have no effect."""

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
        """See `agents.external.protocols.Protocol`."""
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
        tools = []
        for number, one in enumerate(self.tools or ()):
            if one.get("type") != "function":
                raise refused(f"tools.{number}", "only functions can be called; serve other tools as functions")
            tools.append(tool(one.get("name"), one.get("description"), one.get("parameters")))
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "function":
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        form = (self.text or {}).get("format") or {}
        if isinstance(form, dict) and form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
        return chat_request(
            "input",
            model=self.model,
            messages=messages,
            tools=tools or None,
            tool_choice=choice,
            max_tokens=self.max_output_tokens,
            response_format=form or None,
            stream=self.stream,
        )

    def answer(self, completion: Answer) -> Answer:
        """See `agents.external.protocols.Protocol`."""
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
        """See `agents.external.protocols.Protocol`."""
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
