"""Closed models at a service with OpenAI's chat API, such as GPT-4o mini and GPT-5 mini: text both ways.

Only what every such service knows is sent, and what the config says of this one (`models.*.request`). A schema is said
at the end of the last message and asked for in JSON mode; a reply is read as that of a model that nothing constrains.
The service's own count is the cost. Nothing that such a model writes can be trained on: its token ids are not known.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ratchet.core.config import ModelConfig, written
from ratchet.core.errors import UserError
from ratchet.core.http.retry import Backoff
from ratchet.core.records import content_key
from ratchet.core.text import replace_surrogates
from ratchet.inference.chat import ChatFormat
from ratchet.inference.completion import AUTHORS, ChatTurn, Completion, FinishReason, Message, Part, SamplingParams
from ratchet.inference.engine import EngineError, SeveralEngine
from ratchet.inference.http.connection import (
    REJECTION_STATUSES,
    Connection,
    StatusError,
    TextChoice,
    TextResponse,
    Usage,
    is_context_full,
    parse_response,
)
from ratchet.inference.schemas import SchemaRefused, only_schema

LINE_BREAK = ord("\n")
BYTES_PER_TOKEN = 3
"""For the estimate: English takes 4 to 5 bytes a token, so the estimate is rather high."""


@dataclass(frozen=True)
class TextFormat:
    """See `inference.chat.ChatFormat`. The tokenizer of a closed model is not known, so a dialogue's ids are the
    characters of its text. A service gets messages and marks the turns itself, so that nothing can forge them.
    `Dialogue.freeze` records the text in place of ids, with a line break after each message, which the spans mark as
    the template's.
    """

    tokenizer: ClassVar[None] = None
    is_text: ClassVar[bool] = True
    places_system: ClassVar[bool] = True
    end_of_turn: ClassVar[int] = LINE_BREAK
    end_ids: ClassVar[tuple[int, ...]] = (LINE_BREAK,)
    calls: ClassVar[None] = None
    control_ids: ClassVar[frozenset[int]] = frozenset()
    turn_ids: ClassVar[frozenset[int]] = frozenset()
    control_pattern: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    reply_opening: ClassVar[str] = ""
    thinking: ClassVar[None] = None
    vocabulary: ClassVar[int] = sys.maxunicode + 1

    def follow(
        self,
        turns: Sequence[ChatTurn],
        shown: int,
        text: Callable[[], str],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[bool, list[Part]]:
        if tools or any(turn.role == "tool" for turn in turns):
            raise UserError("models that are reached as text (engine: chat-api) take no tools here")
        parts: list[Part] = []
        for turn in turns[shown:]:
            parts += [(AUTHORS[turn.role], self.encode(turn.text)), ("template", (LINE_BREAK,))]
        return True, parts

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, replace_surrogates(text)))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def count(self, ids: Sequence[int]) -> int:
        """Estimate the tokens. The service's own count is in its answer."""
        return -(-len(self.decode(ids).encode()) // BYTES_PER_TOKEN)

    @property
    def digest(self) -> str:
        return content_key("text")[:16]


REFUSED_PARAMETER = {"unsupported_parameter", "unsupported_value", "unknown_parameter"}
"""The codes of a 400 that says that this model, or this service, does not take a parameter."""
FIXES = {
    "temperature": "request: {temperature: null, top_p: null}",
    "top_p": "request: {temperature: null, top_p: null}",
    "max_tokens": "no request: {max_completion_tokens: null}",
    "max_completion_tokens": "request: {max_completion_tokens: null}",
    "seed": "send_seed: false",
}
"""By parameter: the setting of the model without which it is not sent."""
SCHEMA = "\n\nAnswer with JSON that fits this JSON schema, and nothing else:\n"
"""Behind the last message, before a schema. JSON mode demands that the word JSON is in a message."""


class ChatApiEngine(SeveralEngine):
    """See `inference.engine.Engine`.

    A fault that every later request would meet too (wrong key, no credit, unknown model, a parameter that the model
    refuses) is a UserError, which stops the command: finished work is kept, and the same command resumes later.
    """

    def __init__(self, model: ModelConfig, backoff: Backoff | None = None) -> None:
        if isinstance(model.url, tuple):
            model = model.model_copy(update={"url": model.url[0]})
        self.connection = Connection(model, backoff)
        self.format: ChatFormat = TextFormat()
        self.max_context = model.max_context
        self._model = model
        self._name = model.served_name or written(model.path)
        more = {name: value for name, value in model.request.items() if name != "max_completion_tokens"}
        told = {
            "sampling": more.pop("temperature", True) is not None,
            "reasoning_effort": more.pop("reasoning_effort", None),
            "reasoning_tokens": model.reasoning_tokens,
        }
        if not told["sampling"]:
            more.pop("top_p", None)
        self.fingerprint = content_key("chat-api", self._name, told | more)
        self._slots = asyncio.Semaphore(model.max_in_flight)
        self._takes_several = True

    async def generate_several(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        n: int,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> list[Completion]:
        """Send `messages`, whose characters are `prompt`. A service counts the prompt's tokens once."""
        if n > 1 and not self._takes_several:
            return []
        if adapter is not None:
            raise UserError(
                f"{adapter}: {self._name} is a closed model (engine: chat-api), which takes no adapter; evaluate it "
                "with --base-only"
            )
        if params.logprobs or not messages or messages[-1]["role"] != "user":
            raise UserError(
                f"{self._name} is a closed model (engine: chat-api): it neither continues an answer that has started "
                "nor returns log-probabilities of tokens, and this system needs one of them"
            )
        prompt_tokens = self.format.count(prompt)
        if prompt_tokens >= self.max_context:
            raise EngineError(f"the prompt has {prompt_tokens} tokens, the model's context holds {self.max_context}")
        body = chat_request(self._model, self._name, messages, params) | ({} if n == 1 else {"n": n})
        try:
            async with self._slots:
                answer = await self.connection.json("POST", "chat/completions", body)
        except StatusError as error:
            if is_context_full(error.status, error.codes, error.text):
                return [Completion(ids=(), text="", finish_reason="context", prompt_tokens=prompt_tokens)] * n
            if n > 1 and error.status in REJECTION_STATUSES:
                self._takes_several = False
                return []
            raise self._explained(error, params) from None
        return chat_completions(answer, prompt_tokens, self.format)

    async def close(self) -> None:
        await self.connection.close()

    def _explained(self, error: StatusError, params: SamplingParams) -> Exception:
        """Return the error, or where every request would meet it a UserError that says what to set."""
        if error.status == 404:
            return UserError(
                f"{error}\nIs `url` complete (it mostly ends in /v1), and is {self._name!r} a model of this service?"
            )
        if error.status == 400 and not REFUSED_PARAMETER.isdisjoint(error.codes):
            fixes = {name: f"no request.{name}" for name in self._model.request} | FIXES
            fix = next((fix for name, fix in fixes.items() if name in error.codes), "another service")
            return UserError(f"{error}\nSet for this model: {fix}")
        if error.status == 400 and "response_format" in error.codes and params.schema is not None:
            return SchemaRefused(
                f"{error}\nThe service has no JSON mode; set system.malformed: reask, which asks for none"
            )
        return error


def chat_request(model: ModelConfig, name: str, messages: Sequence[Message], params: SamplingParams) -> dict[str, Any]:
    """Return the body of POST /chat/completions, with no parameter whose value is the service's own default. Raises
    SchemaRefused for a grammar that is no schema."""
    given, schema = model.request, only_schema(params.schema)
    limit = "max_tokens" if "max_completion_tokens" in given else "max_completion_tokens"
    body: dict[str, Any] = {
        "model": name,
        "messages": [{"role": message["role"], "content": message["content"]} for message in messages],
        limit: params.max_tokens + model.reasoning_tokens,
        "temperature": params.temperature,
    }
    if params.top_p < 1:
        body["top_p"] = params.top_p
    body = {name: value for name, value in (body | given).items() if value is not None}
    if model.send_seed:
        body["seed"] = params.seed
    if schema is not None:
        body["messages"][-1]["content"] += SCHEMA + json.dumps(schema, ensure_ascii=False)
        if schema.get("type", "object") == "object" and "enum" not in schema:  # JSON mode gives objects alone
            body["response_format"] = {"type": "json_object"}
    return body


def chat_completions(data: Any, prompt_tokens: int, chat: ChatFormat) -> list[Completion]:
    """Read the completions in a response of POST /chat/completions; their ids are the characters of the text.

    A refusal is the model's answer. `prompt_tokens` counts where the response has no usage. Raises EngineError where
    the response is invalid, or the service withheld it.
    """
    answer = parse_response(TextResponse, data)
    is_alone = len(answer.choices) == 1  # else the usage is that of all
    return [_completion(choice, answer.usage, is_alone, prompt_tokens, chat) for choice in answer.choices]


def _completion(
    choice: TextChoice, usage: Usage | None, is_alone: bool, prompt_tokens: int, chat: ChatFormat
) -> Completion:
    reasons: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}
    if choice.finish_reason not in reasons:
        raise EngineError(f"the service ended the answer for the reason {str(choice.finish_reason)[:100]!r}")
    text = choice.message.content or choice.message.refusal or ""
    ids = chat.encode(text)
    details = usage.prompt_tokens_details if usage else None
    hidden = usage.completion_tokens_details if usage else None
    return Completion(
        ids=ids,
        text=text,
        finish_reason=reasons[choice.finish_reason],
        prompt_tokens=usage.prompt_tokens if usage else prompt_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        hidden_thought_tokens=(hidden.reasoning_tokens or 0) if hidden and is_alone else 0,
        billed_tokens=usage.completion_tokens if usage and is_alone else chat.count(ids),
    )
