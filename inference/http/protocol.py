"""Request bodies and responses of servers of language models, as pure functions.

Fields were read from vLLM 0.32's own protocol (entrypoints/openai/completion) and OpenAI's chat completions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, FiniteFloat, StrictInt, ValidationError

from ratchet.inference.chat import ChatFormat
from ratchet.inference.completion import Completion, FinishReason, SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.schemas import grammar_of

A = TypeVar("A", bound=BaseModel)
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
REJECTION_STATUSES = frozenset({400, 413, 422})
"""Statuses for an invalid request; old versions of llama.cpp answer 500, which is retried and then fails.

The codes and messages below are from vLLM 0.32's source (its errors name the parameter instead of a code) and from the
error responses of OpenAI, llama.cpp, SGLang, TGI and llama-cpp-python."""
CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error", "input_tokens", "input_text"}
CONTEXT_MESSAGE = re.compile(
    r"""maximum\ context\ length\ (is|of)\ \d+\ tokens
    | longer\ than\ the\ (maximum\ model\ length\ of|model's\ context\ length) \ \(?\d+
    | exceeds?\ the\ available\ context\ size
    | requested\ tokens\ \(\d+\)\ exceed\ context\ window\ of\ \d+
    | `?inputs`?\ (tokens\ \+\ `?max_new_tokens`?\ must\ be\ <= | must\ have\ less\ than\ \d+\ tokens)
    | max_tokens\ must\ be\ at\ least\ 1,\ got\ 0 # vLLM, where a prompt of exactly the context's length leaves no room
    """,
    re.IGNORECASE | re.VERBOSE,
)
SCHEMA_CODES = {"response_format", "structured_outputs", "guided_json", "grammar"}
SCHEMA_MESSAGE = re.compile(r"schema|grammar|structured.outputs?|response_format|guided_|ebnf", re.IGNORECASE)


class NoTokenIds(EngineError):
    """The response has no token ids: the server cannot return them, or this response is malformed."""


class PromptTokensDetails(BaseModel):
    """`usage.prompt_tokens_details` of a response."""

    cached_tokens: Count | None = None


class CompletionTokensDetails(BaseModel):
    """`usage.completion_tokens_details` of a response."""

    reasoning_tokens: Count | None = None


class Usage(BaseModel):
    """`usage` of a response, in tokens."""

    prompt_tokens: Count
    completion_tokens: Count = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class TokenLogprobs(BaseModel):
    """`logprobs` of a completion, one for each token."""

    token_logprobs: list[FiniteFloat | None]


class TokenChoice(BaseModel):
    """A completion as token ids."""

    finish_reason: str | None = None
    stop_reason: StrictInt | str | None = None
    token_ids: list[StrictInt] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: TokenLogprobs | None = None


class TokenResponse(BaseModel):
    """The response of POST /completions."""

    choices: list[TokenChoice] = Field(min_length=1)
    usage: Usage


class TextMessage(BaseModel):
    """The message of a chat completion."""

    content: str | None = None
    refusal: str | None = None
    """Why a closed model does not answer, in place of `content`."""


class TextChoice(BaseModel):
    """A chat completion as text."""

    message: TextMessage
    finish_reason: str | None = None


class TextResponse(BaseModel):
    """The response of POST /chat/completions."""

    choices: list[TextChoice] = Field(min_length=1)
    usage: Usage | None = None


class ServedModel(BaseModel):
    """An entry of GET /models."""

    id: str
    max_model_len: int | None = None
    parent: str | None = None
    """vLLM: the base model of an adapter."""


class ServedModels(BaseModel):
    """The response of GET /models."""

    data: list[ServedModel]


def parse_response(kind: type[A], data: Any) -> A:
    """Validate a decoded response. EngineError names the first field that is invalid."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"]) or "answer"
        raise EngineError(f"the server's response is invalid: {field}: {problem['msg']}") from None


def token_request(
    model: str, prompt: Sequence[int], params: SamplingParams, room: int, chat: ChatFormat, send_seed: bool
) -> dict[str, Any]:
    """The body of vLLM's POST /completions: token ids in, token ids out. `room`: new tokens that the context allows.

    Every sampling setting that a model's generation_config.json may set is sent: the server would otherwise apply
    those (Qwen2.5: top_k 20, repetition_penalty 1.05) and sample another distribution than the other engines.
    EngineError for a schema together with log-probabilities, which vLLM does not support.
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
        "stop_token_ids": [*chat.end_ids, *params.stop_ids],
        "return_token_ids": True,
    }
    if send_seed:
        body["seed"] = params.seed
    if params.schema is not None:
        body["structured_outputs"] = {"grammar": grammar_of(params.schema)}
    if params.logprobs:
        body["logprobs"] = 0  # none of the alternatives, only the sampled tokens
    return body


def token_completion(data: Any, prompt: Sequence[int], params: SamplingParams, chat: ChatFormat) -> Completion:
    """The completion in a response of POST /completions, its ids exactly those that the server sampled.

    EngineError where the response is invalid, or the server changed the prompt; NoTokenIds where it has no ids.
    """
    answer = parse_response(TokenResponse, data)
    choice = answer.choices[0]
    if answer.usage.prompt_tokens != len(prompt) or choice.prompt_token_ids not in (None, list(prompt)):
        raise EngineError(
            f"the server read {answer.usage.prompt_tokens} prompt tokens, not the {len(prompt)} that were sent: it "
            "cut or changed the prompt; serve with a --max-model-len that holds max_context"
        )
    if choice.token_ids is None:
        raise NoTokenIds(
            "the server returns no token ids, so its actions cannot be trained on as they were sampled; serve "
            "with a vLLM that supports return_token_ids (0.10.2 or newer)"
        )
    ids, ended = choice.token_ids, choice.finish_reason == "stop"
    if len(ids) > params.max_tokens:
        raise EngineError(f"the server returned {len(ids)} tokens where {params.max_tokens} were asked for")
    if ended:
        # Some versions leave the token that ended the turn out of the list. stop_reason names it, or is null for the
        # tokenizer's own end-of-sequence token.
        named = choice.stop_reason if isinstance(choice.stop_reason, int) else None
        expected = chat.control_ids if named is None else {named}
        if not ids or ids[-1] not in expected:
            ids = [*ids, chat.end_of_turn if named is None else named]
    invalid = next((i for i in ids if not 0 <= i < chat.vocabulary), None)
    if invalid is not None:
        raise EngineError(
            f"the server returned the token id {str(invalid)[:30]}, and the tokenizer's go from 0 to "
            f"{chat.vocabulary - 1}: is it serving another model?"
        )
    logprobs = None
    if params.logprobs:
        given = choice.logprobs.token_logprobs if choice.logprobs else []
        logprobs = tuple(value for value in given if value is not None)
        if len(logprobs) != len(ids):
            raise EngineError(f"the server returned {len(logprobs)} log-probabilities for {len(ids)} tokens")
    details = answer.usage.prompt_tokens_details
    return Completion(
        ids=tuple(ids),
        text=chat.decode(ids[:-1] if ended else ids),
        finish_reason=_finish(choice.finish_reason, len(ids), params),
        prompt_tokens=len(prompt),
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        logprobs=logprobs,
    )


def _finish(reason: str | None, new_tokens: int, params: SamplingParams) -> FinishReason:
    if reason == "stop":
        return "stop"
    if reason == "length":
        return "length" if new_tokens >= params.max_tokens else "context"
    raise EngineError(f"the server ended the answer for the reason {str(reason)[:100]!r}")


def is_context_full(status: int, codes: Collection[str], text: str) -> bool:
    """Whether the prompt has more tokens than the server's context holds."""
    return status in REJECTION_STATUSES and (not CONTEXT_CODES.isdisjoint(codes) or bool(CONTEXT_MESSAGE.search(text)))


def is_schema_rejected(status: int, codes: Collection[str], text: str) -> bool:
    """Whether the server rejects the schema of a request that has one."""
    return status in REJECTION_STATUSES and (not SCHEMA_CODES.isdisjoint(codes) or bool(SCHEMA_MESSAGE.search(text)))
