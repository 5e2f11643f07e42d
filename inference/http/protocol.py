"""What goes over the wire to a server of language models and what comes back, as pure functions.

Fields were read from vLLM 0.32's own protocol (entrypoints/openai/completion) and OpenAI's chat completions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, FiniteFloat, StrictInt, ValidationError

from inference.chat import ChatFormat
from inference.engine import Completion, EngineError, FinishReason, Message, SamplingParams
from ratchet.errors import UserError

A = TypeVar("A", bound=BaseModel)
Count = Annotated[int, Field(ge=0, lt=1 << 53)]


class NoTokenIds(EngineError):
    """The server spoke text: it cannot do otherwise, or this answer is an odd one."""


class Details(BaseModel):
    cached_tokens: Count | None = None


class Usage(BaseModel):
    prompt_tokens: Count
    completion_tokens: Count = 0
    prompt_tokens_details: Details | None = None


class TokenLogprobs(BaseModel):
    token_logprobs: list[FiniteFloat | None]


class TokenChoice(BaseModel):
    finish_reason: str | None = None
    stop_reason: StrictInt | str | None = None
    token_ids: list[StrictInt] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: TokenLogprobs | None = None


class TokenAnswer(BaseModel):
    choices: list[TokenChoice] = Field(min_length=1)
    usage: Usage


class TextMessage(BaseModel):
    content: str | None = None


class TextChoice(BaseModel):
    message: TextMessage
    finish_reason: str | None = None


class TextAnswer(BaseModel):
    choices: list[TextChoice] = Field(min_length=1)
    usage: Usage | None = None


class ServedModel(BaseModel):
    id: str
    max_model_len: int | None = None
    parent: str | None = None
    """vLLM: the base model of an adapter."""


class ServedModels(BaseModel):
    data: list[ServedModel]


def read_answer(kind: type[A], data: Any) -> A:
    """Raises EngineError that names the first field which is not as it should be."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"]) or "answer"
        raise EngineError(f"the server's answer cannot be used: {field}: {problem['msg']}") from None


def token_request(
    model: str, prompt: Sequence[int], params: SamplingParams, room: int, chat: ChatFormat, send_seed: bool
) -> dict[str, Any]:
    """Body of POST /completions of vLLM: ids in, ids out.

    Every sampling setting that a model's generation_config.json may set is sent: the server would otherwise apply
    those (Qwen2.5: top_k 20, repetition_penalty 1.05) and sample another distribution than the other engines.
    """
    if params.schema is not None and params.logprobs:
        raise EngineError("vLLM gives log-probabilities under the grammar, not the model's own; ask for one of the two")
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": min(params.max_tokens, room),
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": [chat.end_of_turn],
        "return_token_ids": True,
    }
    if send_seed:
        body["seed"] = params.seed
    if params.schema is not None:
        body["structured_outputs"] = {"grammar": schema_grammar(json.dumps(params.schema))}
    if params.logprobs:
        body["logprobs"] = 0  # none of the alternatives, only the sampled tokens
    return body


@lru_cache(maxsize=256)
def schema_grammar(schema: str) -> str:
    """A JSON schema as the grammar that the in-process engine uses, in xgrammar's own notation.

    A schema itself is compiled by vLLM in another way: either with white space anywhere, which small models fill an
    answer with, or (--structured-outputs-config.disable_any_whitespace) with none even where JSON usually has some:
    {"a":1}. Under another grammar the same model says other things. Raises UserError.
    """
    import xgrammar

    try:
        return str(xgrammar.Grammar.from_json_schema(schema, any_whitespace=False))
    except RuntimeError as error:
        raise UserError(f"this JSON schema cannot constrain decoding: {error}: {schema}") from error


def token_completion(data: Any, prompt: Sequence[int], params: SamplingParams, chat: ChatFormat) -> Completion:
    answer = read_answer(TokenAnswer, data)
    choice = answer.choices[0]
    if answer.usage.prompt_tokens != len(prompt) or choice.prompt_token_ids not in (None, list(prompt)):
        raise EngineError(
            f"the server read {answer.usage.prompt_tokens} prompt tokens, not the {len(prompt)} that were sent: it "
            "cut or changed the prompt; serve with a --max-model-len that holds max_context"
        )
    if choice.token_ids is None:
        raise NoTokenIds(
            "the server gives no token ids back, so its actions cannot be trained on as they were sampled; serve "
            "with a vLLM that knows return_token_ids (0.10.2 or newer), or set engine: openai"
        )
    ids, ended = choice.token_ids, choice.finish_reason == "stop"
    if len(ids) > params.max_tokens:
        raise EngineError(f"the server gave {len(ids)} tokens where {params.max_tokens} were asked for")
    if ended:
        # Some versions leave the token that ended the turn out of the list. stop_reason names it, or is null for the
        # tokenizer's own end-of-sequence token.
        named = choice.stop_reason if isinstance(choice.stop_reason, int) else None
        expected = chat.control_ids if named is None else {named}
        if not ids or ids[-1] not in expected:
            ids = [*ids, chat.end_of_turn if named is None else named]
    strange = next((i for i in ids if not 0 <= i < chat.vocabulary), None)
    if strange is not None:
        raise EngineError(
            f"the server gave the token id {str(strange)[:30]}, and the tokenizer's go from 0 to "
            f"{chat.vocabulary - 1}: does it serve another model?"
        )
    logprobs = None
    if params.logprobs:
        given = choice.logprobs.token_logprobs if choice.logprobs else []
        logprobs = tuple(value for value in given if value is not None)
        if len(logprobs) != len(ids):
            raise EngineError(f"the server gave {len(logprobs)} log-probabilities for {len(ids)} tokens")
    details = answer.usage.prompt_tokens_details
    return Completion(
        ids=tuple(ids),
        text=chat.decode(ids[:-1] if ended else ids),
        finish_reason=_finish(choice.finish_reason, len(ids), params),
        prompt_tokens=len(prompt),
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        logprobs=logprobs,
    )


def text_request(
    model: str, messages: Sequence[Message], params: SamplingParams, room: int, chat: ChatFormat, send_seed: bool
) -> dict[str, Any]:
    """Body of POST /chat/completions. The server encodes the text itself, so control tokens in it are broken up."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": m["role"], "content": chat.disarm(m["content"])} for m in messages],
        "max_tokens": min(params.max_tokens, room),
        "temperature": params.temperature,
        "top_p": params.top_p,
    }
    if send_seed:
        body["seed"] = params.seed
    if params.schema is not None:
        form = {"name": "action", "schema": params.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


def text_completion(data: Any, prompt: Sequence[int], params: SamplingParams, chat: ChatFormat) -> Completion:
    """The ids are computed here, from the text: not always those that the model sampled."""
    answer = read_answer(TextAnswer, data)
    choice, usage = answer.choices[0], answer.usage
    if choice.message.content is None:
        raise EngineError(f"the server's answer holds no text (finish_reason {str(choice.finish_reason)[:100]!r})")
    ids = chat.encode(choice.message.content)
    if choice.finish_reason == "stop":
        ids = (*ids, chat.end_of_turn)
    details = usage.prompt_tokens_details if usage else None
    return Completion(
        ids=ids,
        text=choice.message.content,
        finish_reason=_finish(choice.finish_reason, usage.completion_tokens if usage else params.max_tokens, params),
        prompt_tokens=usage.prompt_tokens if usage else len(prompt),
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        retokenised=True,
    )


def _finish(reason: str | None, new_tokens: int, params: SamplingParams) -> FinishReason:
    if reason == "stop":
        return "stop"
    if reason == "length":
        return "length" if new_tokens >= params.max_tokens else "context"
    raise EngineError(f"the server ended the answer for the reason {str(reason)[:100]!r}")
