"""The in-process engine: continuous batching of the requests of all running trajectories.

On a CPU several schedulers run side by side, each a batch of its own on its share of the cores: a batch on all cores
waits at every matrix product for the core that other work has taken. The requests of a question go to one of them,
which has their beginning in its prefix cache, until another would be idle.

A step takes one new token of every decoding sequence and, within a budget, tokens of prompts that are not cached yet,
so the batch never waits for its longest member. A request whose prompt shares a prefix with one that is being prefilled
waits for it and then shares its blocks: eight samples of a question cost one prefill.

Text that a grammar leaves no choice about is not sampled: a step takes the tokenizer's tokens of it at once, as those
of a prompt. That saves steps, and the text has the tokens that it has in a prompt. Where a small model samples them,
it cuts the text in many other ways, which are then a large part of what a training on its actions teaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

import numpy as np
import torch

from ratchet.core.config import ModelConfig
from ratchet.inference.adapters import adapter_digest
from ratchet.inference.chat import ChatFormat
from ratchet.inference.chat_formats import open_chat_format
from ratchet.inference.completion import Completion, FinishReason, Message, SamplingParams
from ratchet.inference.engine import EngineError, current_question
from ratchet.inference.local.cache import BLOCK
from ratchet.inference.local.model import Chunk, PackedModel, cpu_threads, model_fingerprint
from ratchet.inference.local.sampling import (
    FREE,
    NO_TOKEN,
    NOT_FINITE,
    Choice,
    Grammars,
    Matcher,
    log_probability,
    sample,
)
from ratchet.inference.local.vectors import Array


class LocalEngine:
    """See `inference.engine.Engine`. Memory: weights plus at most `cache_gb`."""

    def __init__(self, config: ModelConfig) -> None:
        self.format = open_chat_format(config)
        first = PackedModel(config)
        models = [first, *(first.copy_for_worker() for _ in range(1, first.workers))]
        self.max_context = min(config.max_context, first.window)
        self._vocabulary, self._blocks = first.vocabulary, first.pool.blocks
        self.fingerprint = model_fingerprint(config)
        self._config = config
        self._grammars = Grammars(self.format.tokenizer, first.vocabulary, self.format.end_ids)
        self._adapters: dict[str, tuple[int, str]] = {}
        self._schedulers = [Scheduler(config, model, self.format) for model in models]
        self._load = [0] * len(models)
        """By scheduler, the tokens of the requests that it has."""
        self._last: dict[Hashable, int] = {}
        """By adapter and question, the scheduler that was asked last."""

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Completion:
        room = min(params.max_tokens, self.max_context - len(prompt))
        blocks = (len(prompt) + room + BLOCK - 1) // BLOCK
        if not prompt:
            raise EngineError("the prompt is empty")
        if room < 1:
            raise EngineError(f"the prompt has {len(prompt)} tokens, the model's context holds {self.max_context}")
        if blocks > self._blocks:
            raise EngineError(
                f"{len(prompt)} + {room} tokens need more cache than each of {len(self._schedulers)} workers has of "
                f"cache_gb={self._config.cache_gb}; raise it"
            )
        invalid = next((i for i in prompt if not 0 <= i < self._vocabulary), None)
        if invalid is not None:
            raise EngineError(
                f"the prompt holds the token id {invalid}, and the model's go from 0 to {self._vocabulary - 1}"
            )
        if params.schema is not None and not self._grammars.is_compiled(params.schema):
            await asyncio.to_thread(self._grammars.compile, params.schema)  # others go on meanwhile
        number, root = self._adapter(adapter)
        request = Request(
            prompt=list(prompt),
            params=params,
            adapter=number,
            root=root,
            future=Future(),
            matcher=self._grammars.matcher(params.schema) if params.schema is not None else None,
            max_new=room,
            ends=frozenset((*self.format.end_ids, *params.stop_ids)),
            rng=random.Random(params.seed),
            ids=list(prompt),
        )
        if request.matcher and (reason := request.extend(request.matcher.forced())):
            return request.completion(reason, self.format)
        place, tokens = self._choose(root, prompt, room)
        self._load[place] += tokens
        try:
            self._schedulers[place].submit(request)
            return await asyncio.wrap_future(request.future)
        except asyncio.CancelledError:
            request.future.cancel()
            raise
        finally:
            self._load[place] -= tokens

    def _choose(self, root: str, prompt: Sequence[int], new: int) -> tuple[int, int]:
        """Return (the scheduler, the tokens that it is given). A prompt that another one has computed counts twice: it
        delays the request, and it takes time from all others."""
        question = root, current_question() or hash(tuple(prompt))
        if len(self._last) >= MOST_QUESTIONS:
            self._last.clear()
        last = self._last.get(question)
        places = range(len(self._load))
        place = min(places, key=lambda one: self._load[one] - (2 * len(prompt) if one == last else 0))
        self._last[question] = place
        return place, new + (0 if place == last else len(prompt))

    async def close(self) -> None:
        for scheduler in self._schedulers:
            await asyncio.to_thread(scheduler.close)
        torch.set_num_threads(cpu_threads())

    def _adapter(self, folder: str | None) -> tuple[int, str]:
        if folder is None:
            return 0, "base"
        if folder not in self._adapters:
            numbers = {scheduler.model.lora.load(folder) for scheduler in self._schedulers}
            (number,) = numbers  # each counts in the same order
            self._adapters[folder] = (number, adapter_digest(folder))
        return self._adapters[folder]


MOST_QUESTIONS = 10000
"""Whose worker is remembered."""
PREFILL_TOKENS = 512
"""Prompt tokens in one step: enough to keep the processor busy, few enough that decoding continues."""


@dataclass(eq=False)
class Request:
    """A request to the model, and its progress."""

    prompt: list[int]
    params: SamplingParams
    adapter: int
    root: str
    """Prefix-cache namespace: an adapter's keys and values are its own."""
    future: Future[Completion]
    matcher: Matcher | None
    max_new: int
    """The limit of new tokens, by max_tokens and by the context window."""
    ends: frozenset[int]
    """The tokens that end it."""
    rng: random.Random
    ids: list[int] = field(default_factory=list)
    """Prompt and new tokens."""
    computed: int = 0
    """Tokens whose keys and values are in `blocks`."""
    cached_blocks: int = 0
    """The number of full blocks that are in the prefix cache."""
    blocks: list[int] = field(default_factory=list)
    cached: int = 0
    deadline: float | None = None
    """Set when the request is first admitted: time in the queue does not count."""
    logprobs: list[float] = field(default_factory=list)

    @property
    def choice(self) -> Choice:
        """What may come after its tokens."""
        return self.matcher.choice if self.matcher else FREE

    def is_late(self, now: float) -> bool:
        return self.deadline is not None and self.deadline < now

    def extend(self, tokens: Sequence[int]) -> FinishReason | None:
        """Add new tokens, up to the one that ends the request, and return why it ends there."""
        for token in tokens:
            self.ids.append(token)
            if token in self.ends:
                return "stop"
            if len(self.ids) - len(self.prompt) == self.max_new:
                return "length" if self.max_new == self.params.max_tokens else "context"
        return None

    def completion(self, reason: FinishReason, chat_format: ChatFormat) -> Completion:
        new = tuple(self.ids[len(self.prompt) :])
        return Completion(
            ids=new,
            text=chat_format.decode(new[:-1] if new and new[-1] in chat_format.end_ids else new),
            finish_reason=reason,
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached,
            logprobs=tuple(self.logprobs) if self.params.logprobs else None,
        )


class Scheduler:
    """Owns a model, and runs its share of `config.batch` sequences at once."""

    def __init__(self, config: ModelConfig, model: PackedModel, chat_format: ChatFormat) -> None:
        self.model = model
        self._config = config
        self._batch = -(-config.batch // model.workers)
        self._format = chat_format
        self._inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._scratch = np.empty(model.vocabulary, np.float32)
        self._fault: BaseException | None = None
        self._no_mask = np.zeros(1, np.int32)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RuntimeError where a fault has stopped the thread."""
        self._inbox.put(request)
        if self._fault is not None:  # the thread no longer reads the inbox
            raise RuntimeError("the engine has stopped") from self._fault

    def close(self) -> None:
        """Wait for the thread's end."""
        self._inbox.put(None)
        self._thread.join()
        self.model.close()

    # Everything below runs in the scheduler's own thread.

    def _run(self) -> None:
        torch.set_num_threads(self.model.threads)
        try:
            while self._receive():
                self._step()
        except BaseException as error:
            # A bug of ours, not of one request: every waiting request gets the exception, and the run stops.
            self._fault = error
            with contextlib.suppress(queue.Empty):
                while request := self._inbox.get_nowait():
                    self._waiting.append(request)
            for request in [*self._running, *self._waiting]:
                if not request.future.done():
                    request.future.set_exception(error)
            raise

    def _receive(self) -> bool:
        """Move new requests to the queue, waiting for one when there is no work. False: the engine is closed."""
        idle = not self._running and not self._waiting
        while idle or not self._inbox.empty():
            request = self._inbox.get()
            if request is None:
                return False
            self._waiting.append(request)
            idle = False
        return True

    def _step(self) -> None:
        now = time.monotonic()
        for request in [r for r in (*self._running, *self._waiting) if r.future.cancelled() or r.is_late(now)]:
            self._finish(request, "timeout")
        steps = self._schedule()
        if not steps:
            return
        logits = self.model.forward([self._chunk(request, count) for request, count in steps.items()]).numpy()
        rows = iter(logits)
        for request, count in steps.items():
            self._advance(request, count, rows)

    def _chunk(self, request: Request, count: int) -> Chunk:
        end = request.computed + count
        return Chunk(
            request.ids[request.computed : end],
            request.computed,
            request.blocks,
            request.adapter,
            sampled=end == len(request.ids),
            allowed=request.choice.allowed,
        )

    def _advance(self, request: Request, count: int, rows: Iterator[Array]) -> None:
        """Take the step in which the next `count` tokens of a request were computed; `rows`: logits after the last
        ones of requests."""
        before, prompt = request.computed, len(request.prompt)
        request.computed += count
        reason: FinishReason | None = None
        if request.computed == len(request.ids):
            try:
                reason = request.extend(self._sample_next(request, next(rows)))
            except EngineError as error:
                self._remove(request)
                _resolve(request, error)
                return
        self._cache_full_blocks(request)
        if reason is not None or before < prompt <= request.computed:
            self._cache_beginning(request)
        if reason is not None:
            self._finish(request, reason)

    def _schedule(self) -> dict[Request, int]:
        """Decide how many tokens this step computes of each request that it advances, and admit waiting requests."""
        steps: dict[Request, int] = {}
        budget = PREFILL_TOKENS
        for request in list(self._running):
            if request not in self._running:  # preempted by a request that needed its blocks
                continue
            n = len(request.ids) - request.computed
            if n > 1:
                n = min(n, budget)
                budget -= n
            if n and self._allocate(request, n, steps):
                steps[request] = n
        # A block that is computed in this step can be shared in the next one, so a request that needs it waits.
        coming = {self._next_block(request) for request in steps}
        for request in list(self._waiting):
            if budget <= 0 or len(self._running) >= self._batch:
                break
            found = self.model.pool.find_prefix(request.root, request.ids)
            request.blocks, request.computed, request.cached_blocks = found, len(found) * BLOCK, len(found)
            n = min(len(request.ids) - request.computed, budget)
            wanted = self._next_block(request)
            if wanted in coming or not self._can_allocate(request, n):
                self._free_blocks(request)
                continue
            request.computed += self.model.pool.copy_beginning(request.root, request.blocks, request.ids)
            n = min(n, len(request.ids) - request.computed)
            if request.deadline is None:
                request.deadline = time.monotonic() + self._config.timeout
                request.cached = min(request.computed, len(request.prompt))  # forced text may be cached too
            self._waiting.remove(request)
            self._running.append(request)
            self._allocate(request, n, steps)
            steps[request] = n
            coming.add(wanted)
            budget -= n
        return steps

    def _next_block(self, request: Request) -> tuple[str, tuple[int, ...]]:
        """The key of the first block that is not cached yet, with those of its tokens that are known."""
        return request.root, tuple(request.ids[: (request.cached_blocks + 1) * BLOCK])

    def _can_allocate(self, request: Request, n: int) -> bool:
        needed = (request.computed + n + BLOCK - 1) // BLOCK - len(request.blocks)
        # Running sequences may each need another block soon; leave one for each.
        return self.model.pool.available >= needed + (len(self._running) if self._running else 0)

    def _allocate(self, request: Request, n: int, steps: dict[Request, int]) -> bool:
        """Allocate blocks for n more tokens, preempting the youngest requests; False if it is preempted itself."""
        while len(request.blocks) * BLOCK < request.computed + n:
            block = self.model.pool.allocate()
            if block is not None:
                request.blocks.append(block)
                continue
            youngest = self._running.pop()
            steps.pop(youngest, None)
            self._free_blocks(youngest)
            self._waiting.appendleft(youngest)
            if youngest is request:
                return False
        return True

    def _free_blocks(self, request: Request) -> None:
        self.model.pool.free(request.blocks)
        request.blocks, request.computed, request.cached_blocks = [], 0, 0

    def _cache_full_blocks(self, request: Request) -> None:
        pool = self.model.pool
        while (request.cached_blocks + 1) * BLOCK <= request.computed:
            i = request.cached_blocks
            parent = request.blocks[i - 1] if i else None
            tokens = request.ids[i * BLOCK : (i + 1) * BLOCK]
            request.blocks[i] = pool.cache_block(request.root, parent, request.blocks[i], tokens)
            request.cached_blocks += 1

    def _cache_beginning(self, request: Request) -> None:
        """Let others copy what is computed of a request's last block: its next turn, and samples of the same prompt."""
        full = request.cached_blocks
        if ids := request.ids[full * BLOCK : request.computed]:
            parent = request.blocks[full - 1] if full else None
            self.model.pool.cache_beginning(request.root, parent, request.blocks[full], ids)

    def _sample_next(self, request: Request, logits: Array) -> list[int]:
        """Return the next token, and those that a grammar then forces."""
        choice, params = request.choice, request.params
        allowed = choice.allowed
        token = sample(
            logits if allowed is None else logits[allowed],
            self._no_mask if choice.mask is None else choice.mask,
            choice.mask is not None,
            params.temperature,
            params.top_p,
            request.rng.random(),
            self._scratch,
        )
        if token == NOT_FINITE:
            raise EngineError(
                f"the model's logits are not finite: after {len(request.ids)} tokens there is nothing to sample from; "
                f"its weights or its adapter are damaged, or too large for dtype: {self._config.dtype}"
            )
        if token == NO_TOKEN:
            raise EngineError(
                f"the grammar allows no token after {len(request.ids) - len(request.prompt)} new ones: does any "
                "output fit its schema?"
            )
        token = int(token if allowed is None else allowed[token])
        if params.logprobs:
            request.logprobs.append(float(log_probability(logits, token)))
        if request.matcher is None:
            return [token]
        request.matcher.accept(token)
        return [token, *request.matcher.forced()]

    def _remove(self, request: Request) -> None:
        if request in self._running:
            self._running.remove(request)
        else:
            with contextlib.suppress(ValueError):
                self._waiting.remove(request)
        self._free_blocks(request)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        self._remove(request)
        if not request.future.cancelled():
            _resolve(request, request.completion(reason, self._format))


def _resolve(request: Request, outcome: Completion | EngineError) -> None:
    with contextlib.suppress(InvalidStateError):  # the caller has been cancelled
        if isinstance(outcome, EngineError):
            request.future.set_exception(outcome)
        else:
            request.future.set_result(outcome)
