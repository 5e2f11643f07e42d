"""Anthropic's Messages API and OpenAI's Responses API, translated to chat completions and back (`protocols.py`)."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from ratchet.agents.external.protocols import Answer, Chat, Dialect, Functions, ProgramRequest, Reply, refused
from ratchet.inference.completion import FunctionCall
from ratchet.inference.token_format import JOIN
from ratchet.inference.tool_calls import template_call

# What both share: items that are messages, calls and results, and tools

CALLS = {
    **dict.fromkeys(("tool_use", "custom_tool_call"), "input"),
    **dict.fromkeys(("function_call", "tool_search_call"), "arguments"),
    "local_shell_call": "action",
}
"""Types of items that are calls, and where each has its arguments."""
RESULTS = {
    "tool_result": "content",
    **dict.fromkeys(("function_call_output", "custom_tool_call_output", "local_shell_call_output"), "output"),
    "tool_search_output": "tools",
}
"""Types of items that are results of calls, and where each has its text."""
UNREAD = ("thinking", "redacted_thinking", "reasoning", "additional_tools")
UNSAID: dict[str, Any] = {"type": "exec", "env": {}}
"""What a local shell's action has that the model need not say."""


def chat_messages(items: Iterable[tuple[str, Mapping[str, Any]]], tools: Toolbox) -> list[Answer]:
    """Items, each with what its request calls it, as messages: a call in the assistant's before it. ApiError."""
    messages: list[Answer] = []
    for where, item in items:
        kind = str(item.get("type", "message"))
        id = item.get("tool_use_id") or item.get("call_id") or item.get("id")
        if kind == "message":
            text = text_of(item.get("content"), f"{where}.content", tools)
            messages.append({"role": item.get("role"), "content": text})
        elif kind in CALLS:
            given = item.get(CALLS[kind])
            given = {"input": given} if kind == "custom_tool_call" else given
            if kind == "local_shell_call" and isinstance(given, dict):
                given = {key: value for key, value in given.items() if value not in (None, UNSAID.get(key))}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            name = named_in(item.get("namespace"), item.get("name") or kind.removesuffix("_call"))
            messages[-1].setdefault("tool_calls", []).append(template_call(name, given, id))
        elif kind in RESULTS:
            at, output = f"{where}.{RESULTS[kind]}", item.get(RESULTS[kind])
            if kind == "tool_search_output":
                output = "\n".join(Toolbox().add(output, at, hidden=True).shown.values())
            text = text_of(output, at, tools)
            if item.get("is_error") and not text.lower().startswith("error"):
                text = f"Error: {text}"
            messages.append({"role": "tool", "tool_call_id": id, "content": text})
        elif kind not in UNREAD:
            raise refused(where, f"an item of type {kind[:50]!r} cannot be read")
    return messages


def text_of(content: Any, where: str, tools: Toolbox | None = None) -> str:
    """The text of a content, which is a text or a list of parts. `tools`: those that a part may name."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (part, None)
        if kind == "tool_reference" and tools is not None:
            name = str(part.get("tool_name"))
            text = tools.shown.get(name, name)
        elif kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
            raise refused(where, f"a part of type {str(kind)[:50]!r} cannot be read; send text")
        texts.append(text)
    return "\n".join(texts)


def chat_request(own: Dialect, names: Mapping[str, str], tools: Toolbox, **fields: Any) -> Chat:
    """A checked request. ApiError that names what is wrong with it; `names`: what its own API calls some fields."""
    fields |= {"model": own.model, "stream": own.stream, "tools": tools.offered}
    try:
        kept = {key: value for key, value in fields.items() if value or value is False}
        return Chat(ProgramRequest.model_validate(kept), tools.hidden, tools.left_out)
    except ValidationError as error:
        field, *path = error.errors()[0]["loc"]
        raise refused(".".join(map(str, (names.get(str(field), field), *path))), error.errors()[0]["msg"]) from None


SERVICE_TOOLS = re.compile(
    "web_(search|fetch)|code_(execution|interpreter)|tool_search_tool|advisor|mcp|file_search|image_generation"
)
"""Beginnings of the types of tools that the service itself would run."""
COMMAND = {"type": "array", "items": {"type": "string"}}
OWN_PARAMETERS: dict[str, Answer] = {
    "custom": {"parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}},
    "local_shell": {
        "description": "Runs a command on this machine.",
        "parameters": {"type": "object", "properties": {"command": COMMAND}, "required": ["command"]},
    },
}
"""What a tool of a type has as a function."""


class Toolbox:
    """The tools of a request as functions, and what their own API calls them."""

    def __init__(self) -> None:
        self.offered, self.hidden, self.left_out = Functions(), Functions(), list[str]()
        """As `Chat` has them."""
        self.own: dict[str, tuple[str, Mapping[str, Any]]] = {}
        """(the type in its own API, the keys that name it there) by the name of the function."""

    def add(self, tools: Any, where: str = "tools", space: Any = None, hidden: bool = False) -> Toolbox:
        """Add the tools of a request, or of a namespace. ApiError for one that nobody could call."""
        tools = [] if tools is None else tools
        if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
            raise refused(where, "expected a list of tools")
        kinds = [str(tool.get("type") or "custom") for tool in tools]
        # What is deferred would be found by a search: the program's, or the service's, which is not there.
        defers = not any(kind.startswith("tool_search_tool") for kind in kinds)
        for number, (kind, tool) in enumerate(zip(kinds, tools, strict=True)):
            at = f"{where}.{number}"
            if kind == "namespace":
                self.add(tool.get("tools"), f"{at}.tools", tool.get("name"), hidden)
            elif SERVICE_TOOLS.match(kind) or "direct" not in str(tool.get("allowed_callers") or "direct"):
                self.left_out.append(str(tool.get("name") or kind))
            else:
                kind, function = _function(tool, kind, at)
                own = {"name": function.get("name")} | ({"namespace": space} if space else {})
                name = named_in(space, own["name"])
                made = {"type": "function", "function": function | ({"name": name} if name else {})}
                if str(name) in self.own and at.startswith("input") and made in [*self.offered, *self.hidden]:
                    continue  # another item has it too
                self.own[str(name)] = (kind, own)
                (self.hidden if hidden or (defers and tool.get("defer_loading")) else self.offered).append(made)
        return self

    @cached_property
    def shown(self) -> dict[str, str]:
        """The description of each hidden tool, by its name."""
        functions = [tool["function"] for tool in self.hidden]
        return {str(function.get("name")): json.dumps(function, ensure_ascii=False) for function in functions}


def _function(tool: Mapping[str, Any], kind: str, where: str) -> tuple[str, Answer]:
    """(the type of a tool's calls, the tool as a function)."""
    if tool.get("async"):
        raise refused(f"{where}.async", "a call's result has to be in the next request; leave it out")
    given = {key: tool.get(key) for key in ("name", "description", "parameters")}
    if "input_schema" in tool or kind == "function":
        kind, given["parameters"] = "function", tool.get("input_schema", given["parameters"])
    elif kind == "custom" and "type" in tool:  # a text in a form that a grammar may define
        form = tool.get("format")
        about = given["description"], form.get("definition") if isinstance(form, Mapping) else None
        given["description"] = JOIN.join(str(text) for text in about if text)
    elif kind in ("local_shell", "tool_search") and (kind == "local_shell" or tool.get("execution") == "client"):
        given["name"] = kind
    else:
        raise refused(where, "only functions can be called; serve other tools as functions")
    given |= OWN_PARAMETERS.get(kind, {})
    return kind, {key: value for key, value in given.items() if value is not None}


def named_in(space: Any, name: Any) -> Any:
    """The name of a function that may be in a namespace."""
    return f"{space}__{name}" if space else name


# Anthropic's Messages


class SentMessage(BaseModel):
    """One message of a request."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]

    def items(self, where: str) -> Iterator[tuple[str, Answer]]:
        """Results of tools, the text beside them, and calls."""
        blocks = [{"type": "text", "text": self.content}] if isinstance(self.content, str) else self.content
        kinds = [(str(block.get("type")), block) for block in blocks]
        results = [block for kind, block in kinds if kind in RESULTS]
        texts = [block for kind, block in kinds if kind not in (*RESULTS, *CALLS, *UNREAD)]
        yield from ((where, result) for result in results)
        if texts or not results:
            yield where, {"role": self.role, "content": texts}
        yield from ((where, block) for kind, block in kinds if kind in CALLS)


class MessagesRequest(Dialect):
    """The body of POST /v1/messages, and of /v1/messages/count_tokens."""

    messages: list[SentMessage] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    max_tokens: int | None = Field(None, gt=0)
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None

    def chat(self) -> Chat:
        tools, system = Toolbox().add(self.tools), text_of(self.system, "system")
        items = (item for number, one in enumerate(self.messages) for item in one.items(f"messages.{number}"))
        given = self.tool_choice or {}
        kind = str(given.get("type", "auto"))
        named = {"type": "function", "function": {"name": given.get("name")}}
        return chat_request(
            self,
            {"response_format": "output_config.format"},
            tools,
            messages=[*([{"role": "system", "content": system}] if system else []), *chat_messages(items, tools)],
            tool_choice=named if kind == "tool" else {"any": "required"}.get(kind, kind),
            parallel_tool_calls=False if given.get("disable_parallel_tool_use") else None,
            response_format=(self.output_config or {}).get("format"),
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
        )

    def answer(self, reply: Reply) -> Answer:
        said, completion = reply.turn, reply.completion
        content: list[Answer] = []
        if said.thought:
            content.append({"type": "thinking", "thinking": said.thought, "signature": ""})
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        content += [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.value} for call in said.calls]
        ended = "tool_use" if said.calls else "max_tokens" if reply.is_cut else "end_turn"
        stop = {"stop_reason": "stop_sequence" if reply.stop else ended, "stop_sequence": reply.stop}
        cached, new = completion.cached_tokens, completion.new_tokens
        usage = {"input_tokens": completion.prompt_tokens - cached, "output_tokens": new}
        usage |= {"cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
        head = {"id": f"msg_{time.time_ns():x}", "type": "message", "role": "assistant", "model": self.model}
        return {**head, "content": content, **stop, "usage": usage}

    def events(self, reply: Reply) -> Iterator[Answer]:
        answer = self.answer(reply)
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


# OpenAI's Responses


class ResponsesRequest(Dialect):
    """The body of POST /v1/responses."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(None, gt=0)
    text: dict[str, Any] | None = None

    @cached_property
    def toolbox(self) -> Toolbox:
        tools = Toolbox().add(self.tools)
        for number, item in enumerate(self.input if isinstance(self.input, list) else ()):
            if item.get("type") in ("additional_tools", "tool_search_output"):
                tools.add(item.get("tools"), f"input.{number}.tools", hidden=item["type"] == "tool_search_output")
        return tools

    def chat(self) -> Chat:
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        messages = chat_messages(((f"input.{number}", item) for number, item in enumerate(items)), self.toolbox)
        if self.instructions:
            messages = [{"role": "system", "content": self.instructions}, *messages]
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
            choice = {"type": "function", "function": {"name": named_in(choice.get("namespace"), choice.get("name"))}}
        return chat_request(
            self,
            {"messages": "input", "response_format": "text.format"},
            self.toolbox,
            messages=messages,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            max_tokens=self.max_output_tokens,
            response_format=(self.text or {}).get("format"),
        )

    def answer(self, reply: Reply) -> Answer:
        said, number, status = reply.turn, f"{time.time_ns():x}", "incomplete" if reply.is_cut else "completed"
        output: list[Answer] = []
        if said.thought:
            thought = [{"type": "reasoning_text", "text": said.thought}]
            output.append({"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": thought})
        if reply.text or not said.calls:
            about = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": status}
            part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
            output.append({**about, "content": [part]})
        output += [self._call(call, f"fc_{number}_{call.id}") for call in said.calls]
        head = {"id": f"resp_{number}", "object": "response", "created_at": int(time.time()), "model": self.model}
        asked = {
            "instructions": self.instructions,
            "tools": self.tools or [],
            "tool_choice": self.tool_choice or "auto",
        }
        parallel = {"parallel_tool_calls": self.parallel_tool_calls is not False}
        ended = {"error": None, "incomplete_details": {"reason": "max_output_tokens"} if reply.is_cut else None}
        made = {"status": status, "output": output, "usage": reply.usage("input", "output"), "metadata": {}}
        return {**head, **asked, **parallel, **ended, **made}

    def _call(self, call: FunctionCall, id: str) -> Answer:
        """A call as the kind of its tool has it."""
        kind, own = self.toolbox.own.get(call.name, ("function", {"name": call.name}))
        item, given = {"id": id, "call_id": call.id, "status": "completed"}, call.value
        if kind == "custom" and [*given] == ["input"] and isinstance(given["input"], str):
            return {"type": "custom_tool_call", **item, **own, "input": given["input"]}
        if kind in ("function", "custom"):  # a custom call has no place for other arguments, and the model said them
            return {"type": "function_call", **item, **own, "arguments": call.arguments}
        item["type"] = f"{kind}_call"
        if kind == "local_shell":
            return {**item, "action": UNSAID | given}
        return {**item, "execution": "client", "arguments": given}

    def events(self, reply: Reply) -> Iterator[Answer]:
        numbers = itertools.count()
        return ({**event, "sequence_number": next(numbers)} for event in _events(self.answer(reply)))


def _events(answer: Answer) -> Iterator[Answer]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(answer["output"]):
        kind, at = item["type"], {"output_index": index, "item_id": item["id"]}
        key = "content" if kind == "message" else CALLS.get(kind, "")
        is_text = isinstance(item.get(key), str)
        empty = {key: "" if is_text else [], "status": "in_progress"} if is_text or kind == "message" else {}
        yield {"type": "response.output_item.added", "output_index": index, "item": item | empty}
        if kind == "message":
            [part], at["content_index"] = item["content"], 0
            yield {"type": "response.content_part.added", **at, "part": part | {"text": ""}}
            yield {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **at, "part": part}
        elif is_text:
            event = f"response.{kind}_{key}"
            yield {"type": f"{event}.delta", **at, "delta": item[key]}
            yield {"type": f"{event}.done", **at, "name": item["name"], key: item[key]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{answer['status']}", "response": answer}


DIALECTS: dict[str, type[Dialect]] = {
    "/v1/chat/completions": ProgramRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
}
"""The dialects by their paths."""
