"""OpenAI's Responses API at the gateway: POST /v1/responses, as far as agents with functions need it.

Input items are messages, calls of functions and their outputs; reasoning items are left out, since the gateway has the
model's own. Nothing is kept between requests: `previous_response_id` is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ratchet.agents.external.protocols import Answer, add_call, chat_request, text_of, tool
from ratchet.agents.external.recording import ProgramRequest, refused
from ratchet.inference.tool_calls import template_call


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
