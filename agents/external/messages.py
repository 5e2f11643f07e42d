"""Anthropic's Messages API at the gateway: POST /v1/messages, as far as agents with tools need it.

Thinking blocks of earlier turns are left out, since the gateway has the model's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ratchet.agents.external.protocols import Answer, add_call, chat_request, text_of, tool
from ratchet.agents.external.recording import ProgramRequest, refused
from ratchet.core.text import read_json
from ratchet.inference.tool_calls import template_call

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
