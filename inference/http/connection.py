"""One server over HTTP: retries, waiting out a restart, and errors in the server's own words without our key; request
bodies and responses as pure functions.

Whatever the server sends in answer to one request is that request's EngineError at worst. Fields were read from vLLM
0.32's own protocol (entrypoints/openai/completion) and OpenAI's chat completions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
from collections.abc import Collection, Sequence
from typing import Annotated, Any, TypeVar
from urllib.request import getproxies

import httpx
from pydantic import BaseModel, Field, FiniteFloat, StrictInt, ValidationError

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
from ratchet.core.http.clients import Answer, BadResponse, is_local, open_async_client, send_request
from ratchet.core.http.environment import certificates
from ratchet.core.http.retry import AWAY, TRANSIENT, Backoff, read_retry_after
from ratchet.core.progress import duration
from ratchet.core.text import read_json, short_line
from ratchet.inference.chat import ChatFormat
from ratchet.inference.completion import Completion, FinishReason, SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.schemas import grammar_of

CONNECT_TIMEOUT = 10.0
"""Seconds to open a connection; answers may take the model's whole `timeout`."""
MAX_RESPONSE_BYTES = 32 << 20
"""The size limit of one response. A completion of 131,072 tokens with their log-probabilities takes 12 MB."""
MAX_RETRY_WAIT = 5.0
"""The longest wait in seconds between two tries while a server is away."""
TRIES_BEFORE_FIRST_RESPONSE = 3
HOW_TO_START = (
    "start one with `ratchet models serve`, or with: vllm serve MODEL --host 127.0.0.1 "
    "--enable-prompt-tokens-details --structured-outputs-config.backend xgrammar"
)

NO_SUCH_SERVICE = "check the network, a proxy in between, and models.*.url"
"""The advice for a service that others run."""
OUT_OF_QUOTA = "insufficient_quota"
"""The code of a 429 that no wait ends."""

logger = logging.getLogger(__name__)


class StatusError(EngineError):
    """The server answered with an error status, after retries where the status is transient."""

    def __init__(self, message: str, status: int, codes: Collection[str] = (), text: str = "") -> None:
        super().__init__(message)
        self.status, self.codes, self.text = status, codes, text
        """`codes`: the values of the error's fields code, type and param."""


class ServerLost(UserError):
    """No server answers, or it has answered no request for the whole time that is waited for it."""


class Connection:
    """The connection to one server. It waits for a server that has answered once: a restart of vLLM takes minutes.

    Away means that connections are refused or break, or that it answers 502 or 503. Requests fail where that lasts
    for the model's `timeout`. Before the first answer a server is more likely absent than restarting, so only three
    tries are made, unless `served` says that it is up.
    """

    def __init__(self, model: ModelConfig, backoff: Backoff | None = None, served: bool = False) -> None:
        self.url = _base_url(model)
        self._timeout = model.timeout
        self._advice = NO_SUCH_SERVICE if model.engine == "chat-api" else HOW_TO_START
        self._key_name = model.api_key_env
        self._key = os.environ.get(model.api_key_env, "")
        self._backoff = backoff or Backoff()
        self._has_answered = served
        self._answered_at = float("-inf")
        self._away_since: float | None = None
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=model.max_in_flight)
        local = is_local(self.url)
        transport = None
        if not local and not getproxies():
            transport = httpx.AsyncHTTPTransport(verify=certificates(), limits=limits, socket_options=_keep_alive())
        self._client = open_async_client(
            self._key,
            trust_env=not local,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
            limits=limits,
            transport=transport,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return a successful answer, decoded. Raises what `request` raises."""
        answer = await self.request(method, path, body)
        try:
            return read_json(answer.body)
        except ValueError as error:
            raise EngineError(f"{self.url}: the answer is not valid JSON ({self._one_line(error)})") from None

    async def request(
        self, method: str, path: str, body: dict[str, Any] | None = None, transient: frozenset[int] = TRANSIENT
    ) -> Answer:
        """Return a successful answer. Raises EngineError (StatusError among others), ServerLost, and UserError for a
        wrong key."""
        # A lone surrogate, which a prompt may have from a document, has no UTF-8 encoding: it becomes '?'.
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode(errors="replace")
        headers = {} if body is None else {"Content-Type": "application/json"}
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout
        failed = tries_while_away = 0
        lost: float | None = None
        while True:
            asked, away = None, True
            try:
                request = self._client.build_request(method, f"{self.url}/{path}", content=content, headers=headers)
                async with asyncio.timeout_at(deadline):
                    answer = await send_request(self._client, request, MAX_RESPONSE_BYTES)
            except TimeoutError:
                raise EngineError(f"{self.url} gave no answer within {self._timeout:g} s (models.*.timeout)") from None
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                problem: Exception = ServerLost(f"no server answers at {self.url} ({_reason(error)}); {self._advice}")
            except httpx.TransportError as error:
                problem = EngineError(f"{self.url}: the connection broke ({self._one_line(_reason(error))})")
            except BadResponse as error:
                self._mark_alive(clock())
                raise EngineError(f"{self.url}: {self._one_line(error)}") from None
            else:
                away, busy = answer.status in AWAY, answer.busy
                if not away and not busy:
                    self._mark_alive(clock())
                if answer.is_success and not busy:
                    return answer
                problem = self._status_error(answer)
                if (not busy and answer.status not in transient) or isinstance(problem, UserError):
                    raise problem
                asked = read_retry_after(answer.headers)
            if away and self._has_answered:
                tries_while_away += 1
                lost = clock() if lost is None else lost
                if asked and clock() + asked >= lost + self._timeout:
                    asked = None  # it may be back before that
                wait = max(min(self._backoff.wait(tries_while_away), MAX_RETRY_WAIT), asked or 0.0)
                if clock() + wait >= lost + self._timeout:
                    raise self._lost_error(problem, lost)
                if tries_while_away > 1:
                    self._log_waiting(problem, lost)
                deadline = clock() + wait + self._timeout  # the restarted server starts this request again
            else:
                failed += 1
                wait = self._backoff.wait(failed, asked)
                tries = (
                    self._backoff.tries if self._has_answered else min(TRIES_BEFORE_FIRST_RESPONSE, self._backoff.tries)
                )
                if failed >= tries or clock() + wait >= deadline:
                    raise problem
                logger.info("%s; try %d of %d in %.1f s", problem, failed + 1, tries, wait)
            await asyncio.sleep(wait)

    def _mark_alive(self, now: float) -> None:
        self._has_answered, self._answered_at = True, now
        if self._away_since is not None:
            logger.warning("%s is back after %s", self.url, duration(now - self._away_since))
            self._away_since = None

    def _log_waiting(self, problem: Exception, since: float) -> None:
        if self._away_since is None:
            self._away_since = since
            logger.warning("waiting for %s, up to %s: %s", self.url, duration(self._timeout), problem)

    def _lost_error(self, problem: Exception, since: float) -> Exception:
        if self._answered_at > since:
            return EngineError(f"{problem}; it answers other requests")  # this one may be the cause
        return ServerLost(
            f"{problem}\nWaited for it as long as one request may take (models.*.timeout: {self._timeout:g} s). "
            "Finished work is kept: see why the server ended, then run the same command again to resume."
        )

    def _status_error(self, answer: Answer) -> Exception:
        status = answer.status
        codes, text = (set[str](), answer.busy) if answer.busy else _read_error(answer)
        line = self._one_line(text)
        if status in (401, 403):
            state = "which the server does not accept" if self._key else "which is not set"
            return UserError(
                f"{self.url} refuses access ({status}: {line}); the key is read from the environment variable "
                f"{self._key_name}, {state}"
            )
        if OUT_OF_QUOTA in codes:
            return UserError(f"{self.url}: {line} (the account of the key in {self._key_name} has no credit left)")
        return StatusError(f"{self.url} answered {status}: {line}", status, codes, text)

    def _one_line(self, message: object) -> str:
        text = str(message)
        if self._key:
            text = text.replace(self._key, "***")
        return short_line(text) or "(nothing)"


def _read_error(answer: Answer) -> tuple[set[str], str]:
    try:
        data = read_json(answer.body)
    except ValueError:
        return set(), answer.text
    error = data.get("error", data) if isinstance(data, dict) else data
    if not isinstance(error, dict):
        return set(), str(error)
    codes = {code for key in ("code", "type", "param") if isinstance(code := error.get(key), str)}
    return codes, str(error.get("message") or error.get("detail") or error)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _keep_alive() -> list[tuple[int, int, int]]:
    """Socket options for TCP keepalive: a dead node is noticed in two minutes, not after `timeout`."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not everywhere
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def _base_url(model: ModelConfig) -> str:
    if not model.url:
        local = f"http://127.0.0.1:8000/v1, and {HOW_TO_START}"
        example = "https://api.openai.com/v1" if model.engine == "chat-api" else local
        raise UserError(
            f"the model {model.path} has engine: {model.engine} but no url; set models.*.url, such as {example}"
        )
    assert isinstance(model.url, str), "replicas have a connection each"
    try:
        url = httpx.URL(model.url)
    except httpx.InvalidURL as error:
        raise UserError(f"models.*.url: {model.url!r} is not an address ({error})") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError(f"models.*.url: {model.url!r} is not an address such as http://127.0.0.1:8000/v1")
    if url.userinfo:
        raise UserError(f"models.*.url: keep secrets out of the address; put the key in ${model.api_key_env}")
    return str(url).rstrip("/")


# Requests and responses


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


class TokensDetails(BaseModel):
    """The details of `usage`, of the prompt or of the completion."""

    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class Usage(BaseModel):
    """`usage` of a response, in tokens."""

    prompt_tokens: Count
    completion_tokens: Count = 0
    prompt_tokens_details: TokensDetails | None = None
    completion_tokens_details: TokensDetails | None = None


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
    """Return the body of vLLM's POST /completions. `room`: new tokens that the context allows.

    Every sampling setting that a model's generation_config.json may set is sent: the server would otherwise apply those
    (Qwen2.5: top_k 20, repetition_penalty 1.05).
    """
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


def token_completions(data: Any, prompt: Sequence[int], params: SamplingParams, chat: ChatFormat) -> list[Completion]:
    """Read the completions in a response of POST /completions, their ids exactly those that the server sampled.

    Raises EngineError where the response is invalid, or the server changed the prompt; NoTokenIds where it has no ids.
    """
    answer = parse_response(TokenResponse, data)
    return [_token_completion(choice, answer.usage, prompt, params, chat) for choice in answer.choices]


def _token_completion(
    choice: TokenChoice, usage: Usage, prompt: Sequence[int], params: SamplingParams, chat: ChatFormat
) -> Completion:
    if usage.prompt_tokens != len(prompt) or choice.prompt_token_ids not in (None, list(prompt)):
        raise EngineError(
            f"the server read {usage.prompt_tokens} prompt tokens, not the {len(prompt)} that were sent: it "
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
    details = usage.prompt_tokens_details
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
    """Return whether the prompt has more tokens than the server's context holds."""
    return status in REJECTION_STATUSES and (not CONTEXT_CODES.isdisjoint(codes) or bool(CONTEXT_MESSAGE.search(text)))


def is_schema_rejected(status: int, codes: Collection[str], text: str) -> bool:
    """Return whether the server rejects the schema of a request that has one."""
    return status in REJECTION_STATUSES and (not SCHEMA_CODES.isdisjoint(codes) or bool(SCHEMA_MESSAGE.search(text)))
