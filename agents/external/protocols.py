"""The requests of programs, in three services' protocols: read, translated to one form, and answered in their own.

OpenAI's chat completions (POST /v1/chat/completions) are the form that the others are translated to: OpenAI's Responses
API (POST /v1/responses) and Anthropic's Messages API (POST /v1/messages), as far as agents with tools need them. The
engine gives an answer as a whole, so the events of a stream come all at once.

A class's fields are read. Of other fields, those in `IGNORED` change nothing that a program could be misled by, those
in `REFUSED` would, and one that is in neither is refused as unknown: `tools/gateway_reference.py` writes the guide's
table. Thoughts of earlier turns are left out, since the gateway has the model's own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ratchet.core.errors import fault_in
from ratchet.core.http.openai import ApiError, ChatMessage, ChatRequest
from ratchet.core.text import MAX_LEVELS, storable_value
from ratchet.inference.completion import ChatTurn, FunctionCall
from ratchet.inference.thoughts import split_thought
from ratchet.inference.token_format import JOIN
from ratchet.inference.tool_calls import NAME

Answer = dict[str, Any]
Functions = list[dict[str, Any]]
"""Tools as chat completions have them."""


# Fields


NO_STATE = "the gateway keeps no state; send the whole input"
NO_PROBABILITIES = "a reply has no log-probabilities"
ONLY_TEXT = "there is only text"
IGNORED = (
    "access_programs betas billing_policy cache_control client_metadata compaction context_management diagnostics "
    "fallback_credit_token fallbacks frequency_penalty include inference_geo max_tool_calls metadata min_p modalities "
    "moderation prediction presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning "
    "reasoning_effort repetition_penalty safety_identifier seed service_tier speed store stream_options temperature "
    "thinking top_k top_p truncation user user_profile_id verbosity workspace_id"
)
"""Fields without an effect in any API: sampling and thoughts are the run's, and the rest is a service's business."""


class Dialect(BaseModel):
    """A request of one API."""

    model_config = ConfigDict(extra="allow")
    REFUSED: ClassVar[Mapping[str, str]]
    """Fields that would change what an answer is, by the reason why that cannot be."""
    model: str
    stream: bool | None = None

    def chat(self) -> Chat:
        """The same request for chat completions. ApiError for what has no equivalent."""
        raise NotImplementedError

    def answer(self, completion: Answer) -> Answer:
        """A completion in the form of this API."""
        raise NotImplementedError

    def events(self, completion: Answer) -> Iterator[Answer]:
        """The same as the events of a stream."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _with_valid_texts(cls, body: Any) -> Any:
        return storable_value(body, levels=2 * MAX_LEVELS)  # that of a schema is the schema's own

    def check_fields(self) -> None:
        """Raise ApiError for a field that cannot be honoured. null, false and what is empty ask for nothing."""
        reasons = {name: reason for reason, names in self.REFUSED.items() for name in names.split()}
        for name, value in (self.model_extra or {}).items():
            if value and name not in IGNORED.split():
                problem = reasons.get(name, "the gateway does not know this field; leave it out")
                details = {"error_code": "thread_unsupported_request"} if name == "thread" else None
                raise ApiError(400, f"{name}: {problem}", param=name, details=details)


# Chat completions


class SentFunction(BaseModel):
    """Name and arguments of a tool's call in a request."""

    name: str
    arguments: str | dict[str, Any] | None = "{}"


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


class ProgramRequest(ChatRequest, Dialect):
    """The body of POST /v1/chat/completions, with what a gateway reads of it."""

    REFUSED: ClassVar = {
        "send tools": "functions function_call",
        NO_PROBABILITIES: "logprobs top_logprobs",
        "sampling is the run's": "logit_bias",
        ONLY_TEXT: "audio",
        "give the program a search": "web_search_options",
    }

    messages: list[ProgramMessage] = Field(min_length=1)  # type: ignore[assignment]  # narrower, and read only
    tools: Functions | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = Field(None, gt=0)
    max_completion_tokens: int | None = Field(None, gt=0)
    stop: str | list[str] | None = None
    response_format: ResponseFormat | None = None
    n: Literal[1] | None = None

    def chat(self) -> Chat:
        self.check_fields()
        return Chat(self)

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


@dataclass(frozen=True)
class Chat:
    """A request as chat completions have it, and what they have no field for."""

    request: ProgramRequest
    hidden: Functions = field(default_factory=list)
    """Tools that the model may call and that the prompt does not name: the program shows them in a message."""
    left_out: Sequence[str] = ()
    """Names of tools that a service would run itself, of which the model is not told."""


def read_turns(request: ProgramRequest, left_out_lines: Sequence[str] = ()) -> list[ChatTurn]:
    """The messages of a request; system messages that open it are one, since most templates take no more.

    What the model said is compared without the blanks and the thought around it. `left_out_lines`: beginnings of lines
    of system messages that are left out.
    """
    turns = [_read_turn(number, message, tuple(left_out_lines)) for number, message in enumerate(request.messages)]
    opening = [*itertools.takewhile(lambda turn: turn.role == "system", turns)]
    joined = JOIN.join(turn.text for turn in opening if turn.text)
    return [*([ChatTurn("system", joined)] if opening else []), *turns[len(opening) :]]


def _read_turn(number: int, message: ProgramMessage, left_out_lines: tuple[str, ...]) -> ChatTurn:
    text = message.text(f"messages.{number}.content")
    if message.role == "function":
        raise ApiError(400, f"messages.{number}: send a tool's result as a message of role tool", param="messages")
    if message.role == "system" or message.role == "developer":
        return ChatTurn("system", "\n".join(line for line in text.split("\n") if not line.startswith(left_out_lines)))
    if message.role != "assistant":
        return ChatTurn(message.role, text, answers=message.tool_call_id or "")
    thought, said = split_thought(text)
    functions = [(call.function, call.id) for call in message.tool_calls or ()]
    calls = [FunctionCall.of(function.name, function.arguments, id) for function, id in functions]
    return ChatTurn("assistant", said.strip(), thought, calls=tuple(calls))


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


def refused(where: str, problem: str) -> ApiError:
    """The error of a request, which names the field."""
    return ApiError(400, f"{where}: {problem}", param=where)


def forced_tools(asked: Chat) -> Functions:
    """The tools of which the model must call one; none where it may say what it wants. ApiError."""
    choice, tools = asked.request.tool_choice, asked.request.tools or []
    for number, tool in enumerate([*tools, *asked.hidden]):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not NAME.fullmatch(name):
            where = f"tools.{number}.function.name"
            fault = fault_in(name, NAME.fullmatch) if isinstance(name, str) else "there is no name"
            raise ApiError(400, f"{where}: {fault}; expected letters, digits and any of _.:/-", param="tools")
    if choice in (None, "auto", "none"):
        return []
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("function"), dict):
        tools = [tool for tool in tools if tool["function"]["name"] == choice["function"].get("name")]
    elif choice != "required":
        raise refused("tool_choice", "expected auto, none, required, or one function by its name")
    if not tools:
        raise refused("tool_choice", "tools has no function of this name")
    return tools


# What the other two share: messages of chat completions, made part by part, and tools


def chat_request(own: Dialect, where: str, tools: Toolbox, **fields: Any) -> Chat:
    """A checked request. ApiError that names what is wrong with it; `where`: what its messages are called."""
    fields |= {"model": own.model, "stream": own.stream, "tools": tools.offered}
    try:
        kept = {key: value for key, value in fields.items() if value or value is False}
        return Chat(ProgramRequest.model_validate(kept), tools.hidden, tools.left_out)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"])) or "the request"
        raise refused(path.replace("messages", where, 1), first["msg"]) from None


def text_of(content: Any, where: str, shown: Mapping[str, Any] | None = None) -> str:
    """The text of a content, which is a text or a list of parts. `shown`: the texts of tools that a part may name."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise refused(where, "expected a text or a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else part
        if kind == "tool_reference":
            texts.append(str((shown or {}).get(str(part.get("tool_name")), part.get("tool_name"))))
        elif kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise refused(where, f"a part of type {str(kind)[:50]!r} cannot be read; send text")
        else:
            texts.append(part["text"])
    return "\n".join(texts)


def add_call(messages: list[dict[str, Any]], call: dict[str, Any]) -> None:
    """Put a call into the assistant's message that it belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


SERVICE_TOOLS = (
    *("web_search", "web_fetch", "code_execution", "tool_search_tool", "advisor", "mcp"),
    *("file_search", "code_interpreter", "image_generation"),
)
"""Beginnings of the types of tools that the service itself would run."""
COMMAND = {"type": "array", "items": {"type": "string"}}
OWN_PARAMETERS: dict[str, dict[str, Any]] = {
    "custom": {"parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}},
    "local_shell": {
        "description": "Runs a command on this machine.",
        "parameters": {"type": "object", "properties": {"command": COMMAND}, "required": ["command"]},
    },
}
"""What a tool of a type has as a function."""


class Toolbox:
    """The tools of a request as functions, and what their own API calls them."""

    def __init__(self, tools: Any = None, where: str = "tools", hidden: bool = False) -> None:
        self.offered: Functions = []
        self.hidden: Functions = []
        self.left_out: list[str] = []
        self.own: dict[str, tuple[str, Mapping[str, Any]]] = {}
        """(the type in its own API, the keys that name it there) by the name of the function."""
        self.add(tools, where, hidden=hidden)

    def add(self, tools: Any, where: str, space: Any = None, hidden: bool = False) -> None:
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
            elif kind.startswith(SERVICE_TOOLS):
                self.left_out.append(str(tool.get("name") or kind))
            else:
                kind, function = _function(tool, kind, at)
                own = {"name": function.get("name")} | ({"namespace": space} if space else {})
                name = named_in(space, own["name"])
                if self.own.setdefault(str(name), (kind, own)) != (kind, own):
                    raise refused(at, f"two tools would have the name {str(name)[:100]!r}")
                made = {"type": "function", "function": function | ({"name": name} if name else {})}
                (self.hidden if hidden or (defers and tool.get("defer_loading")) else self.offered).append(made)

    @cached_property
    def shown(self) -> dict[Any, str]:
        """The description of each hidden tool, by its name."""
        return {tool["function"].get("name"): json.dumps(tool["function"], ensure_ascii=False) for tool in self.hidden}


def _function(tool: Mapping[str, Any], kind: str, where: str) -> tuple[str, dict[str, Any]]:
    """(the type of a tool's calls, the tool as a function)."""
    given = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get("parameters")}
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
