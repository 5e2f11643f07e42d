"""Anthropic's Messages API and OpenAI's Responses API, translated to chat completions and back (`protocols.py`)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from ratchet.agents.external.protocols import (
    NO_PROBABILITIES,
    NO_STATE,
    ONLY_TEXT,
    Answer,
    Chat,
    Dialect,
    Toolbox,
    add_call,
    chat_request,
    named_in,
    refused,
    text_of,
)
from ratchet.core.text import read_json
from ratchet.inference.tool_calls import template_call

# Anthropic's Messages

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
BESIDE_TEXT = ("tool_use", "tool_result", "thinking", "redacted_thinking")
STOPS = {"tool_calls": "tool_use", "stop": "end_turn", "length": "max_tokens"}
"""A completion's finish_reason to Anthropic's stop_reason."""


class SentMessage(BaseModel):
    """One message of a request."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class CountRequest(Dialect):
    """The body of POST /v1/messages/count_tokens."""

    REFUSED: ClassVar = {NO_STATE: "thread container", "give the program the server's tools": "mcp_servers"}

    messages: list[SentMessage] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None

    def chat(self, **more: Any) -> Chat:
        self.check_fields()
        tools, messages = Toolbox(self.tools), list[dict[str, Any]]()
        if system := text_of(self.system, "system"):
            messages.append({"role": "system", "content": system})
        for number, message in enumerate(self.messages):
            messages += _chat_messages(message, f"messages.{number}.content", tools.shown)
        choice: Any = None
        if self.tool_choice is not None:
            kind = str(self.tool_choice.get("type"))
            choice = _named(self.tool_choice.get("name")) if kind == "tool" else CHOICES.get(kind, kind)
            if self.tool_choice.get("disable_parallel_tool_use"):
                more["parallel_tool_calls"] = False
        form = (self.output_config or {}).get("format")
        if form is not None and _form(form) is form:
            raise refused("output_config.format", "expected a json_schema")
        fields = {"messages": messages, "tool_choice": choice, "response_format": _form(form), **more}
        return chat_request(self, "messages", tools, **fields)


class MessagesRequest(CountRequest):
    """The body of POST /v1/messages."""

    max_tokens: int = Field(gt=0)
    stop_sequences: list[str] | None = None

    def chat(self, **more: Any) -> Chat:
        return super().chat(max_tokens=self.max_tokens, stop=self.stop_sequences, **more)

    def answer(self, completion: Answer) -> Answer:
        choice, usage = completion["choices"][0], completion["usage"]
        message, cached = choice["message"], usage["prompt_tokens_details"]["cached_tokens"]
        stop = choice["stop_reason"]
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
            "stop_reason": STOPS[choice["finish_reason"]] if stop is None else "stop_sequence",
            "stop_sequence": stop,
            "usage": {
                "input_tokens": usage["prompt_tokens"] - cached,
                "cache_read_input_tokens": cached,
                "cache_creation_input_tokens": 0,
                "output_tokens": usage["completion_tokens"],
            },
        }

    def events(self, completion: Answer) -> Iterator[Answer]:
        answer = self.answer(completion)
        ended = {key: answer[key] for key in ("stop_reason", "stop_sequence")}
        begun = {**answer, "content": [], **dict.fromkeys(ended), "usage": {**answer["usage"], "output_tokens": 0}}
        yield {"type": "message_start", "message": begun}
        for index, block in enumerate(answer["content"]):
            key, empty = block["type"], block | {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block.get("input"))}
            if key != "tool_use":
                empty, delta = block | {key: ""}, {"type": f"{key}_delta", key: block[key]}
            yield {"type": "content_block_start", "index": index, "content_block": empty}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": answer["usage"]["output_tokens"]}}
        yield {"type": "message_stop"}


def _named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _form(form: Any) -> Any:
    """A format as chat completions have it."""
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}


def _chat_messages(message: SentMessage, where: str, shown: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message as those of chat completions: results of tools come before the text beside them."""
    blocks = [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    messages: list[dict[str, Any]] = []
    texts = [block for block in blocks if block.get("type") not in BESIDE_TEXT]
    for number, block in enumerate(blocks):
        if block.get("type") == "tool_result":
            content = text_of(block.get("content"), f"{where}.{number}.content", shown)
            if block.get("is_error") and not content.lower().startswith("error"):
                content = f"Error: {content}"
            messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})
    if texts or not messages:
        messages.append({"role": message.role, "content": text_of(texts, where)})
    for block in blocks:
        if block.get("type") == "tool_use":
            add_call(messages, template_call(block.get("name"), block.get("input"), block.get("id")))
    return messages


# OpenAI's Responses

CALLS = {
    **dict.fromkeys(("function_call", "tool_search_call"), "arguments"),
    **{"custom_tool_call": "input", "local_shell_call": "action"},
}
"""Types of items that are calls, and where each has its arguments."""
RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output", "tool_search_output")
UNSAID: dict[str, Any] = {"type": "exec", "env": {}}
"""What a local shell's action has that the model need not say."""


class ResponsesRequest(Dialect):
    """The body of POST /v1/responses."""

    REFUSED: ClassVar = {
        NO_STATE: "previous_response_id conversation prompt background background_options",
        NO_PROBABILITIES: "top_logprobs",
        ONLY_TEXT: "image",
    }

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(None, gt=0)
    text: dict[str, Any] | None = None

    @cached_property
    def toolbox(self) -> Toolbox:
        tools = Toolbox(self.tools)
        for number, item in enumerate(self.input if isinstance(self.input, list) else ()):
            if item.get("type") in ("additional_tools", "tool_search_output"):
                tools.add(item.get("tools"), f"input.{number}.tools", hidden=item["type"] == "tool_search_output")
        return tools

    def chat(self) -> Chat:
        self.check_fields()
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        for number, item in enumerate(items):
            where, kind = f"input.{number}", str(item.get("type", "message"))
            id = item.get("call_id") or item.get("id")
            if kind == "message":
                messages.append({"role": item.get("role"), "content": text_of(item.get("content"), f"{where}.content")})
            elif kind in CALLS:
                given = item.get(CALLS[kind])
                given = {"input": given} if kind == "custom_tool_call" else given
                if kind == "local_shell_call" and isinstance(given, dict):
                    given = {key: value for key, value in given.items() if value not in (None, UNSAID.get(key))}
                name = named_in(item.get("namespace"), item.get("name") or kind.removesuffix("_call"))
                add_call(messages, template_call(name, given, id))
            elif kind in RESULTS:
                output = item.get("output")
                if kind == "tool_search_output":
                    output = "\n".join(Toolbox(item.get("tools"), f"{where}.tools", hidden=True).shown.values())
                messages.append({"role": "tool", "tool_call_id": id, "content": text_of(output, f"{where}.output")})
            elif kind not in ("reasoning", "additional_tools"):
                raise refused(where, f"an item of type {kind[:50]!r} cannot be read")
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
            choice = _named(named_in(choice.get("namespace"), choice.get("name")))
        return chat_request(
            self,
            "input",
            self.toolbox,
            messages=messages,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            max_tokens=self.max_output_tokens,
            response_format=_form((self.text or {}).get("format")),
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
        output += [self._call(call, f"fc_{number}_{call['id']}") for call in message.get("tool_calls", ())]
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
            "parallel_tool_calls": self.parallel_tool_calls is not False,
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

    def _call(self, call: Answer, id: str) -> Answer:
        """A call as the kind of its tool has it."""
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        kind, own = self.toolbox.own.get(name, ("function", {"name": name}))
        item, given = {"id": id, "call_id": call["id"], "status": "completed"}, read_json(arguments)
        if kind == "custom" and [*given] == ["input"] and isinstance(given["input"], str):
            return {"type": "custom_tool_call", **item, **own, "input": given["input"]}
        if kind in ("function", "custom"):  # a custom call has no place for other arguments, and the model said them
            return {"type": "function_call", **item, **own, "arguments": arguments}
        item["type"] = f"{kind}_call"
        if kind == "local_shell":
            return {**item, "action": UNSAID | given}
        return {**item, "execution": "client", "arguments": given}

    def events(self, completion: Answer) -> Iterator[Answer]:
        numbers = itertools.count()
        yield from ({**event, "sequence_number": next(numbers)} for event in _events(self.answer(completion)))


def _events(answer: Answer) -> Iterator[Answer]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(answer["output"]):
        added, at = (
            {"type": "response.output_item.added", "output_index": index},
            {"output_index": index, "item_id": item["id"]},
        )
        if item["type"] == "message":
            [part] = item["content"]
            part_at = {**at, "content_index": 0}
            yield {**added, "item": {**item, "status": "in_progress", "content": []}}
            yield {"type": "response.content_part.added", **part_at, "part": {**part, "text": ""}}
            yield {"type": "response.output_text.delta", **part_at, "delta": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **part_at, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **part_at, "part": part}
        elif item["type"] in ("function_call", "custom_tool_call"):
            key = CALLS[item["type"]]
            event = f"response.{item['type']}_{key}"
            yield {**added, "item": {**item, "status": "in_progress", key: ""}}
            yield {"type": f"{event}.delta", **at, "delta": item[key]}
            yield {"type": f"{event}.done", **at, "name": item["name"], key: item[key]}
        else:
            yield {**added, "item": item}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{answer['status']}", "response": answer}
