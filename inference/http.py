"""Engines over HTTP: vLLM, which takes token ids and gives them back, and any server that speaks OpenAI's chat API."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from inference.adapters import adapter_digest
from inference.chat import ChatFormat, load_tokenizer
from inference.engine import Completion, EngineError, Message, SamplingParams
from inference.retry import TRANSIENT, Backoff, parse_retry_after
from inference.wire import (
    ServedModels,
    read_answer,
    text_completion,
    text_request,
    token_completion,
    token_request,
)
from ratchet.config import ModelConfig
from ratchet.errors import UserError, did_you_mean
from ratchet.records import content_key

CONNECT_TIMEOUT = 10.0
"""Seconds to open a connection; answers may take the model's whole `timeout`."""
HOW_TO_START = (
    "start one with: vllm serve MODEL --host 127.0.0.1 --enable-prompt-tokens-details "
    "--structured-outputs-config.backend xgrammar --structured-outputs-config.disable_any_whitespace true"
)

logger = logging.getLogger(__name__)


class Refused(EngineError):
    """The server's answer was an error status, after retrying what is transient."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class HttpEngine:
    """See `inference.engine.Engine`. engine "vllm": ids both ways. engine "openai": text, marked as re-tokenised.

    A fault that every later request would meet too (no server, wrong key, unknown model, an adapter that cannot be
    loaded) is a UserError, which stops the command: what is finished is kept, and the same command goes on later.
    """

    def __init__(self, model: ModelConfig, backoff: Backoff | None = None) -> None:
        self.format = ChatFormat.from_tokenizer(load_tokenizer(model.path, model.revision), model.path)
        self.max_context = model.max_context
        """Lowered to the server's own limit at the first request, where the server tells it."""
        self._model = model
        self._name = model.served_name or model.path
        self.fingerprint = content_key("http", self._name, model.revision, self.format.digest)
        self._url = _base_url(model)
        self._key = os.environ.get(model.api_key_env, "")
        self._backoff = backoff or Backoff()
        self._places = asyncio.Semaphore(model.concurrency)
        self._setup = asyncio.Lock()
        self._ready = False
        self._adapters: dict[str, str] = {}
        self._warned: set[str] = set()
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=model.concurrency),
        )

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Completion:
        tokens = self._model.engine == "vllm"
        if not tokens:
            self._check_text_request(params, adapter, messages)
        name = await self._prepare(adapter)
        room = self.max_context - len(prompt)
        if room < 1:
            raise EngineError(f"the prompt has {len(prompt)} tokens, the model's context holds {self.max_context}")
        if tokens:
            body = token_request(name, prompt, params, room, self.format, self._model.send_seed)
        else:
            body = text_request(name, messages, params, room, self.format, self._model.send_seed)
        async with self._places:
            try:
                response = await self._request("POST", "completions" if tokens else "chat/completions", body)
            except Refused as error:
                if error.status == 404:
                    raise UserError(
                        f"{error}\nIs `url` complete (it mostly ends in /v1), and is {name!r} the name under which "
                        "the server knows the model (models.*.served_name)?"
                    ) from None
                if error.status == 400 and _is_context_error(str(error)):
                    self._warn_once("context", f"{self._url} holds fewer tokens than max_context: {error}")
                    return Completion(ids=(), text="", finish_reason="context", prompt_tokens=len(prompt))
                raise
        if tokens:
            return token_completion(self._decoded(response), prompt, params, self.format)
        completion = text_completion(self._decoded(response), prompt, params, self.format)
        if completion.prompt_tokens < 0.9 * len(prompt):
            self._warn_once(
                "cut",
                f"{self._url} counts {completion.prompt_tokens} prompt tokens where {self._model.path} has "
                f"{len(prompt)}: another tokenizer, or a server that cuts long prompts",
            )
        return completion

    async def close(self) -> None:
        await self._client.aclose()

    def _check_text_request(self, params: SamplingParams, adapter: str | None, messages: Sequence[Message]) -> None:
        if adapter is not None:
            raise UserError(
                f"{adapter}: a server that speaks text cannot switch adapters; set engine: vllm, or serve the "
                "adapter's merged weights as a model of their own"
            )
        if params.logprobs or (messages and messages[-1]["role"] == "assistant"):
            raise UserError(
                "a server that speaks text neither continues an answer that is begun nor gives log-probabilities of "
                "our tokens, and this system needs one of them; set engine: vllm or local"
            )
        if not messages:
            raise EngineError("a server that speaks text needs the messages, not only their tokens")

    # Once per server, once per adapter

    async def _prepare(self, adapter: str | None) -> str:
        """The name to ask for; meets the server and loads the adapter when they are new."""
        if self._ready and (adapter is None or adapter in self._adapters):
            return self._adapters[adapter] if adapter else self._name
        async with self._setup:
            if not self._ready:
                await self._meet()
                self._ready = True
            if adapter is None:
                return self._name
            if adapter not in self._adapters:
                self._adapters[adapter] = await self._load(adapter)
            return self._adapters[adapter]

    async def _meet(self) -> None:
        """Check that the server is there and serves the model, and learn its context length."""
        try:
            served = read_answer(ServedModels, self._decoded(await self._request("GET", "models"))).data
        except EngineError as error:
            if self._model.engine == "vllm":
                raise UserError(f"{error}\nIs {self._url} a vLLM server, and is `url` complete (with /v1)?") from None
            return  # many servers of OpenAI's API do not list their models
        names = [model.id for model in served]
        if self._name not in names and self._model.engine == "vllm":
            raise UserError(
                f"{self._url} does not serve {self._name!r}{did_you_mean(self._name, names)}; set models.*.served_name"
            )
        limits = [model.max_model_len for model in served if model.id == self._name and model.max_model_len]
        self.max_context = min([self._model.max_context, *limits])

    async def _load(self, folder: str) -> str:
        """Have vLLM load an adapter under a name of its own content: a reused name would meet a stale prefix cache."""
        body = await asyncio.to_thread(_adapter_request, folder)
        try:
            # vLLM answers 500 for adapters that it cannot use: trying again would not help.
            await self._request("POST", "load_lora_adapter", body, TRANSIENT - {500})
        except Refused as error:
            if "already been loaded" in str(error):
                return body["lora_name"]
            raise UserError(
                f"{folder}: {self._url} cannot load this adapter: {error}\nServe with --enable-lora --max-lora-rank R "
                "and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in the server's environment, on a machine that sees the folder"
            ) from None
        return body["lora_name"]

    # Talking HTTP

    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, transient: frozenset[int] = TRANSIENT
    ) -> httpx.Response:
        """A successful response. Retries within the model's `timeout`.

        Raises EngineError, Refused for an error status, UserError where no server can be reached or the key is wrong.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._model.timeout
        # Until the server has answered once, it is more likely absent than restarting: do not wait for it for long.
        tries = self._backoff.tries if self._ready else min(3, self._backoff.tries)
        failed = 0
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    response = await self._client.request(method, f"{self._url}/{path}", json=body)
            except TimeoutError:
                raise EngineError(
                    f"{self._url} gave no answer within {self._model.timeout:g} s (models.*.timeout)"
                ) from None
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                problem: Exception = UserError(
                    f"no server answers at {self._url} ({error or type(error).__name__}); {HOW_TO_START}"
                )
                wait = None
            except httpx.TransportError as error:
                problem = EngineError(f"{self._url}: the connection broke ({error or type(error).__name__})")
                wait = None
            else:
                if response.is_success:
                    return response
                problem = self._refusal(response)
                if response.status_code not in transient:
                    raise problem
                wait = parse_retry_after(response.headers.get("retry-after"))
            failed += 1
            wait = self._backoff.wait(failed, wait)
            if failed >= tries or clock() + wait >= deadline:
                raise problem
            logger.info("%s; try %d of %d in %.1f s", problem, failed + 1, tries, wait)
            await asyncio.sleep(wait)

    def _decoded(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise EngineError(f"{self._url}: the answer is not valid JSON ({error})") from None

    def _refusal(self, response: httpx.Response) -> Exception:
        status, said = response.status_code, self._said(response)
        if status in (401, 403):
            state = "which the server does not accept" if self._key else "which is not set"
            return UserError(
                f"{self._url} refuses access ({status}: {said}); the key is read from the environment variable "
                f"{self._model.api_key_env}, {state}"
            )
        return Refused(f"{self._url} answered {status}: {said}", status)

    def _said(self, response: httpx.Response) -> str:
        """The server's own words: one short line, without our key."""
        try:
            data = response.json()
            error = data.get("error", data) if isinstance(data, dict) else data
            text = str((error.get("message") or error.get("detail") or error) if isinstance(error, dict) else error)
        except ValueError:
            text = response.text
        text = " ".join(text.split())
        if self._key:
            text = text.replace(self._key, "***")
        return (text[:300] + "...") if len(text) > 300 else text or "(nothing)"

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s", message)


def _adapter_request(folder: str) -> dict[str, str]:
    return {"lora_name": f"ratchet-{adapter_digest(folder)}", "lora_path": str(Path(folder).resolve())}


def _base_url(model: ModelConfig) -> str:
    """The server's address without a slash at the end."""
    if not model.url:
        raise UserError(
            f"the model {model.path} has engine: {model.engine} but no url; set models.*.url, such as "
            f"http://127.0.0.1:8000/v1, and {HOW_TO_START}"
        )
    assert isinstance(model.url, str), "replicas have an engine each"
    try:
        url = httpx.URL(model.url)
    except httpx.InvalidURL as error:
        raise UserError(f"models.*.url: {model.url!r} is not an address ({error})") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError(f"models.*.url: {model.url!r} is not an address such as http://127.0.0.1:8000/v1")
    if url.userinfo:
        raise UserError(f"models.*.url: keep secrets out of the address; put the key in ${model.api_key_env}")
    return str(url).rstrip("/")


def _is_context_error(message: str) -> bool:
    """vLLM, OpenAI, llama.cpp and others word it differently; all say what is too long."""
    text = message.lower()
    return "context" in text and any(word in text for word in ("length", "exceed", "maximum", "size"))
