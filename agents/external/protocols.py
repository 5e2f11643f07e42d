"""The requests of programs: OpenAI's chat completions, and what they share with the APIs that `translations.py` has.

OpenAI's Responses API and Anthropic's Messages API are translated to chat completions, as far as agents with tools need
them. The engine gives an answer as a whole, so the events of a stream come all at once.

A class's fields are read. Of other fields, those in `IGNORED` change nothing that a program could be misled by, those
in `REFUSED` would, and one that is in neither is refused as unknown: `tools/gateway_reference.py` writes the guide's
table. Thoughts of earlier turns are left out, since the gateway has the model's own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ratchet.agents.external.program import Body
from ratchet.core.errors import fault_in
from ratchet.core.http.openai import ApiError, ChatMessage, ChatRequest
from ratchet.inference.completion import ChatTurn, Completion, FunctionCall
from ratchet.inference.thoughts import split_thought
from ratchet.inference.token_format import JOIN
from ratchet.inference.tool_calls import NAME, template_call

Answer = dict[str, Any]
Functions = list[dict[str, Any]]
"""Tools as chat completions have them."""
IGNORED = (
    "access_programs betas billing_policy cache_control client_metadata compaction context_management diagnostics "
    "fallback_credit_token fallbacks frequency_penalty include inference_geo max_tool_calls messages.name metadata "
    "min_p modalities moderation prediction presence_penalty prompt_cache_key prompt_cache_options "
    "prompt_cache_retention reasoning reasoning_effort repetition_penalty safety_identifier seed service_tier speed "
    "store stream_options temperature thinking tools.input_examples top_k top_p truncation user user_profile_id "
    "verbosity workspace_id"
)
"""Fields without an effect in any API: sampling and thoughts are the run's, and the rest is a service's business. Those
with a point are of the items of a list."""
REASONS = {
    "the gateway keeps no state; send the whole input": "background background_options container conversation "
    "previous_response_id prompt thread",
    "a reply has no log-probabilities": "include:message.output_text.logprobs logprobs top_logprobs",
    "there is only text": "audio image modalities:audio",
    "sampling is the run's": "logit_bias",
    "send tools": "function_call functions",
    "give the program such tools itself": "mcp_servers web_search_options",
}
REFUSED = {name: reason for reason, names in REASONS.items() for name in names.split()}
"""Fields, and items of lists in ignored fields, that would change what an answer is, and why they cannot."""


@dataclass(frozen=True)
class Reply:
    """What a model said to a request."""

    turn: ChatTurn
    text: str
    """The turn's text with the blanks around it."""
    completion: Completion
    thoughts: int
    """Tokens of its thought."""
    stop: str | None
    """The text that ended it."""

    @property
    def is_cut(self) -> bool:
        return not self.turn.calls and self.completion.finish_reason != "stop"

    def usage(self, read: str, said: str) -> Answer:
        """Its tokens, as OpenAI counts them. `read`, `said`: what the API calls those of the prompt and the answer."""
        prompt, new = self.completion.prompt_tokens, self.completion.new_tokens
        counts: Answer = {f"{read}_tokens": prompt, f"{said}_tokens": new, "total_tokens": prompt + new}
        counts[f"{read}_tokens_details"] = {"cached_tokens": self.completion.cached_tokens}
        return counts | {f"{said}_tokens_details": {"reasoning_tokens": self.thoughts}}


class Dialect(Body):
    """A request of one API."""

    model_config = ConfigDict(extra="allow")
    model: str
    stream: bool | None = None

    def chat(self) -> Chat:
        """The same request for chat completions. ApiError for what has no equivalent."""
        raise NotImplementedError

    def answer(self, reply: Reply) -> Answer:
        """A reply in the form of this API."""
        raise NotImplementedError

    def events(self, reply: Reply) -> Iterator[Answer]:
        """The same as the events of a stream."""
        raise NotImplementedError

    def check_fields(self) -> None:
        """Raise ApiError for a field that cannot be honoured. null, false and what is empty ask for nothing."""
        for name, value in (self.model_extra or {}).items():
            items = [f"{name}:{item}" for item in value] if isinstance(value, list) else []
            wrong = next((item for item in items if item in REFUSED), name if name not in IGNORED.split() else "")
            if value and wrong:
                problem = REFUSED.get(wrong, "the gateway does not know this field; leave it out")
                details = {"error_code": "thread_unsupported_request"} if name == "thread" else None
                raise ApiError(400, f"{wrong}: {problem}", param=name, details=details)


def refused(where: str, problem: str) -> ApiError:
    """The error of a request, which names the field."""
    return ApiError(400, f"{where}: {problem}", param=where)


class SentFunction(BaseModel):
    """Name and arguments of a tool's call in a request."""

    name: str
    arguments: str | dict[str, Any] | None = "{}"


class SentCall(BaseModel):
    """A tool's call in a request."""

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
        """The JSON schema, which the other APIs have beside the type; None for free text."""
        own = (self.json_schema or self.model_extra or {}).get("schema") if self.type == "json_schema" else None
        return None if self.type == "text" else own or {"type": "object"}


class ProgramRequest(ChatRequest, Dialect):
    """The body of POST /v1/chat/completions, with what a gateway reads of it."""

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
        return Chat(self)

    def answer(self, reply: Reply) -> Answer:
        said = reply.turn
        message: Answer = {"role": "assistant", "content": reply.text or (None if said.calls else "")}
        if said.thought:
            message["reasoning_content"] = said.thought
        if said.calls:
            message["tool_calls"] = [template_call(call.name, call.arguments, call.id) for call in said.calls]
        ended = "tool_calls" if said.calls else "length" if reply.is_cut else "stop"
        choice = {"index": 0, "message": message, "finish_reason": ended, "logprobs": None, "stop_reason": reply.stop}
        head = {"id": f"chatcmpl-{time.time_ns():x}", "object": "chat.completion", "created": int(time.time())}
        return {**head, "model": self.model, "choices": [choice], "usage": reply.usage("prompt", "completion")}

    def events(self, reply: Reply) -> Iterator[Answer]:
        answer = self.answer(reply) | {"object": "chat.completion.chunk"}
        [choice], usage = answer["choices"], answer.pop("usage")
        message = choice["message"]
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        for delta, reason in ((message, None), ({}, choice["finish_reason"])):
            yield answer | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}
        if self.stream_options is not None and self.stream_options.include_usage:
            yield answer | {"choices": [], "usage": usage}


@dataclass(frozen=True)
class Chat:
    """A request as chat completions have it, and what they have no field for."""

    request: ProgramRequest
    hidden: Sequence[dict[str, Any]] = ()
    """Tools that the model may call and that the prompt does not name: the program shows them in a message."""
    left_out: Sequence[str] = ()
    """Names of tools that a service would run itself, of which the model is not told."""


def read_turns(request: ProgramRequest, left_out_lines: tuple[str, ...] = ()) -> list[ChatTurn]:
    """The messages of a request; system messages that open it are one, since most templates take no more.

    What the model said is compared without the blanks and the thought around it. `left_out_lines`: beginnings of lines
    of system messages that are left out.
    """
    turns = [_read_turn(number, message, left_out_lines) for number, message in enumerate(request.messages)]
    turns = [*_in_order_of_calls(turns)]
    opening = [*itertools.takewhile(lambda turn: turn.role == "system", turns)]
    joined = JOIN.join(turn.text for turn in opening if turn.text)
    return [*([ChatTurn("system", joined)] if opening else []), *turns[len(opening) :]]


def _read_turn(number: int, message: ProgramMessage, left_out_lines: tuple[str, ...]) -> ChatTurn:
    extra = message.model_extra or {}
    text = message.text(f"messages.{number}.content") or str(extra.get("refusal") or "")
    if message.role == "function" or extra.get("function_call") or extra.get("audio"):
        raise refused("messages", f"{number}: send text, calls as tool_calls, and results as messages of role tool")
    if message.role == "system" or message.role == "developer":
        return ChatTurn("system", "\n".join(line for line in text.split("\n") if not line.startswith(left_out_lines)))
    if message.role != "assistant":
        return ChatTurn(message.role, text, answers=message.tool_call_id or "")
    thought, said = split_thought(text)
    calls = [FunctionCall.of(call.function.name, call.function.arguments, call.id) for call in message.tool_calls or ()]
    return ChatTurn("assistant", said.strip(), thought, calls=tuple(calls))


END = ChatTurn("user", "")


def _in_order_of_calls(turns: Iterable[ChatTurn]) -> Iterator[ChatTurn]:
    """The turns, with the results of a turn's calls in the order of the calls, since a chat template may tell which
    result is whose by their order alone. ApiError where they are not exactly one for each call, named by its id."""
    calls, results = dict[str, FunctionCall](), dict[str, ChatTurn]()
    for turn in [*turns, END]:
        if turn.role == "tool":
            if turn.answers not in calls or turn.answers in results:
                what = "a second result of" if turn.answers in results else "a result of no call before it,"
                raise refused("messages", f"{what} tool_call_id {turn.answers[:100]!r}")
            results[turn.answers] = turn
            continue
        if missing := [id for id in calls if id not in results]:
            raise refused("messages", f"no message of role tool has the result of the call {missing[0][:100]!r}")
        yield from (results[id] for id in calls)
        calls, results = {call.id: call for call in turn.calls}, {}
        if "" in calls or len(calls) < len(turn.calls):
            raise refused("messages", "each of tool_calls needs an id of its own")
        if turn is not END:
            yield turn


def forced_tools(asked: Chat) -> Functions:
    """The tools of which the model must call one; none where it may say what it wants. ApiError."""
    choice, tools, names = asked.request.tool_choice, asked.request.tools or [], set[str]()
    for number, tool in enumerate([*tools, *asked.hidden]):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in names:
            fault = "there is no name" if not isinstance(name, str) else f"two tools have the name {name[:100]!r}"
            fault = fault if not isinstance(name, str) or name in names else fault_in(name, NAME.fullmatch)
            raise ApiError(400, f"tools.{number}.function.name: {fault}", param="tools")
        names.add(name)
    if choice in (None, "auto", "none"):
        return []
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("function"), dict):
        tools = [tool for tool in tools if tool["function"]["name"] == choice["function"].get("name")]
    elif choice != "required":
        raise refused("tool_choice", "expected auto, none, required, or one function by its name")
    if not tools:
        raise refused("tool_choice", "tools has no function of this name")
    return tools
