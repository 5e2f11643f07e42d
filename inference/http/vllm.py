"""vLLM over HTTP, which takes and returns token ids: one server, or several of one model.

An adapter that a server has loaded is checked before it is used. Seen in the field: adapters that a server lists and
ignores, and outputs of an older version out of a prefix cache.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.core.config import ModelConfig, written
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.http.retry import TRANSIENT, Backoff
from ratchet.core.records import content_key
from ratchet.core.tasks import gather_or_cancel
from ratchet.inference.adapters import adapter_digest, load_request
from ratchet.inference.chat import ChatFormat
from ratchet.inference.chat_formats import open_chat_format
from ratchet.inference.completion import Completion, Message, SamplingParams
from ratchet.inference.engine import EngineError, SeveralEngine, current_question
from ratchet.inference.http.connection import (
    Connection,
    NoTokenIds,
    ServedModels,
    StatusError,
    TokenChoice,
    TokenResponse,
    is_context_full,
    is_schema_rejected,
    parse_response,
    token_completions,
    token_request,
)
from ratchet.inference.schemas import SchemaRejected

RELOADS = 3
"""The most times that one request reloads its adapter: a restarted server has lost it."""
PROBE = "The first thing to know is"
"""The prompt of the check of adapters: less than a block of a prefix cache, so that it is computed each time."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Loaded:
    """An adapter on this server; reloading creates another object."""

    name: str


class HttpEngine(SeveralEngine):
    """See `inference.engine.Engine`.

    A fault that every later request would meet too (no server, wrong key, unknown model, an adapter that cannot be
    loaded) is a UserError, which stops the command: finished work is kept, and the same command resumes later.
    `served`: the server is known to be up.
    """

    def __init__(
        self,
        model: ModelConfig,
        backoff: Backoff | None = None,
        served: bool = False,
        chat: ChatFormat | None = None,
        merged: str = "",
    ) -> None:
        self.connection = Connection(model, backoff, served)
        self.format = chat or open_chat_format(model)
        self.max_context = model.max_context
        """Lowered to the server's own limit at the first request, where the server tells it."""
        self._has_answered = False
        self._model = model
        self._name = model.served_name or written(model.path)
        reduced = (model.reduced_formats,) if model.reduced_formats else ()
        self._merged = merged
        own = (*reduced, f"merged {merged}") if merged else reduced
        self.fingerprint = content_key("http", self._name, model.revision, self.format.digest, *own)
        self._slots = asyncio.Semaphore(model.max_in_flight)
        self._setup = asyncio.Lock()
        self._connected = False
        self._adapters: dict[str, _Loaded] = {}
        self._warned = False

    async def generate_several(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        n: int,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> list[Completion]:
        """See `inference.engine.SeveralEngine`."""
        if self._merged and adapter is None:
            raise self._other_weights("the base model")
        await self.connect()
        room = self.max_context - len(prompt)
        if room < 1:
            raise EngineError(f"the prompt has {len(prompt)} tokens, the model's context holds {self.max_context}")
        for reloads in range(RELOADS + 1):
            loaded = None
            try:
                loaded = await self._adapter(adapter) if adapter else None
                completions = await self._ask(loaded, prompt, params, room, n)
                break
            except NoTokenIds as error:
                if self._has_answered:
                    raise
                raise UserError(str(error)) from None
            except StatusError as error:
                if is_context_full(error.status, error.codes, error.text):
                    if not self._warned:
                        self._warned = True
                        logger.warning("%s holds fewer tokens than max_context: %s", self.connection.url, error)
                    return [Completion(ids=(), text="", finish_reason="context", prompt_tokens=len(prompt))] * n
                if params.schema is not None and is_schema_rejected(error.status, error.codes, error.text):
                    raise SchemaRejected(
                        f"{error}\nThe server refuses the JSON schema of this answer. Serve with another "
                        f"structured-outputs backend, or set system.malformed: reask, which sends no schema: "
                        f"{json.dumps(params.schema)[:500]}"
                    ) from None
                if error.status != 404:
                    raise
                if adapter and reloads < RELOADS:
                    if self._adapters.get(adapter) is loaded:  # else another request has reloaded it
                        self._adapters.pop(adapter, None)
                    continue
                name = loaded.name if loaded else self._name
                raise UserError(
                    f"{error}\nIs `url` complete (it mostly ends in /v1), and is {name!r} the name under which "
                    "the server knows the model (models.*.served_name)?"
                ) from None
        self._has_answered = True
        return completions

    async def close(self) -> None:
        await self.connection.close()

    async def _ask(
        self, loaded: _Loaded | None, prompt: Sequence[int], params: SamplingParams, room: int, n: int
    ) -> list[Completion]:
        name = loaded.name if loaded else self._name
        async with self._slots:
            body = token_request(name, prompt, params, room, self.format, self._model.send_seed)
            answer = await self.connection.json("POST", "completions", body if n == 1 else body | {"n": n})
        return token_completions(answer, prompt, params, self.format)

    # Once per server, once per adapter

    async def connect(self) -> None:
        """At the first call: check that the server is up and serves the model, and read its context length."""
        if self._connected:
            return
        async with self._setup:
            if not self._connected:
                await self._query_models()
                self._connected = True

    async def _query_models(self) -> None:
        url = self.connection.url
        try:
            served = parse_response(ServedModels, await self.connection.json("GET", "models")).data
        except EngineError as error:
            raise UserError(f"{error}\nIs {url} a vLLM server, and is `url` complete (with /v1)?") from None
        names = [model.id for model in served]
        if self._name not in names:
            raise UserError(
                f"{url} does not serve {self._name!r}{did_you_mean(self._name, names)}; set models.*.served_name"
            )
        limits = [model.max_model_len for model in served if model.id == self._name and model.max_model_len]
        self.max_context = min([self.max_context, *limits])

    async def _adapter(self, folder: str) -> _Loaded:
        if folder in self._adapters:
            return self._adapters[folder]
        async with self._setup:
            if folder not in self._adapters:
                self._adapters[folder] = _Loaded(await self._load(folder))
            return self._adapters[folder]

    async def _load(self, folder: str) -> str:
        """Have vLLM load an adapter; returns its name there, a digest of the content (see `load_request`). Where it is
        merged into the weights, the model's name."""
        body = await asyncio.to_thread(load_request, folder)
        name = body["lora_name"]
        if self._merged:
            if await asyncio.to_thread(adapter_digest, folder) != self._merged:
                raise self._other_weights(folder)
            return self._name
        try:
            # vLLM answers 500 for adapters that it cannot use: a retry would not help.
            await self.connection.request("POST", "load_lora_adapter", body, TRANSIENT - {500})
        except StatusError as error:
            if "already been loaded" not in str(error):
                raise UserError(
                    f"{folder}: {self.connection.url} cannot load this adapter: {error}\nServe with --enable-lora "
                    "--max-lora-rank R and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in the server's environment, on a "
                    "machine that sees the folder"
                ) from None
        await check_adapter(folder, name, self._name, self.connection)
        return name

    def _other_weights(self, asked: str) -> UserError:
        return UserError(
            f"{self.connection.url} serves weights with the adapter {self._merged} merged into them (serve.merge), and "
            f"cannot answer with {asked}"
        )


class ReplicaEngine(SeveralEngine):
    """Several servers of one model; see `inference.engine.Engine`. `models.*.concurrency` and `timeout` hold for each.

    The question of a request chooses its server by a hash: the samples of a question share a prefix, and the turns of
    a trajectory extend one, which is in the cache of the server that answered before. A lost server is waited for, as
    one alone is.
    """

    def __init__(
        self, model: ModelConfig, backoff: Backoff | None = None, served: bool = False, merged: str = ""
    ) -> None:
        assert isinstance(model.url, tuple)
        chat = open_chat_format(model)
        urls = dict.fromkeys(model.url)
        self.servers = [
            HttpEngine(model.model_copy(update={"url": url}), backoff, served, chat, merged) for url in urls
        ]
        self.format, self.fingerprint = chat, self.servers[0].fingerprint
        self.max_context = model.max_context
        """Lowered to the minimum of all at the first request: it must not matter where a trajectory is answered."""

    async def generate_several(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        n: int,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> list[Completion]:
        """See `inference.engine.SeveralEngine`."""
        await gather_or_cancel([server.connect() for server in self.servers])
        self.max_context = min(server.max_context for server in self.servers)
        for server in self.servers:
            server.max_context = self.max_context
        question = current_question() or tuple(prompt)
        chosen = self.servers[int(content_key(question)[:8], 16) % len(self.servers)]
        return await chosen.generate_several(prompt, params, n, adapter, messages)

    async def close(self) -> None:
        for server in self.servers:
            await server.close()


async def check_adapter(folder: str, name: str, base: str, server: Connection) -> None:
    """Raise UserError if the server answers a fixed prompt with the adapter `name` exactly as with `base`."""
    # Rounding depends on what else is in a batch, so one after the other is asked.
    plain, adapted = await _greedy(base, server), await _greedy(name, server)
    if adapted == plain:
        raise UserError(
            f"{folder}: with this adapter the server answers a fixed prompt exactly as the base model {base} does, "
            f"log-probabilities included: it ignores the adapter, or has a stale one under the name {name}; restart "
            "the server, and see whether it supports the adapter's target modules"
        )


async def _greedy(model: str, server: Connection) -> TokenChoice:
    body = {
        "model": model,
        "prompt": PROBE,
        "max_tokens": 8,
        "temperature": 0,
        "repetition_penalty": 1.0,
        "logprobs": 0,
        "return_token_ids": True,
    }
    choice = parse_response(TokenResponse, await server.json("POST", "completions", body)).choices[0]
    if choice.logprobs is None:
        raise EngineError(f"{server.url} returned no log-probabilities, by which an adapter is checked")
    return choice
