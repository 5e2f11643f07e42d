"""The in-process engine: continuous batching of the requests of all running trajectories.

On a CPU several schedulers run side by side, each a batch of its own on its share of the cores: a batch on all cores
waits at every matrix product for the core that other work has taken. A request goes to one that has its beginning in
the prefix cache, or to one with less to do. Both are counted in tokens. A token that another scheduler has cached
counts twice: it delays the request, and it takes time from all others. So the samples of a question stay together
until a core would be idle.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future

import torch

from ratchet.core.config import ModelConfig
from ratchet.inference.adapters import adapter_digest
from ratchet.inference.chat_formats import open_chat_format
from ratchet.inference.completion import Completion, Message, SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.local.cache import BLOCK
from ratchet.inference.local.model import PackedModel, cpu_threads, model_fingerprint
from ratchet.inference.local.sampling import Grammars
from ratchet.inference.local.scheduler import Request, Scheduler, Stats

REMEMBERED = 100_000
"""Blocks of prompts whose schedulers are known; the least recently used are forgotten first."""


class Router:
    """Chooses among `places` by what each was given before; what a full cache has evicted is not known here."""

    def __init__(self, places: int) -> None:
        self.load = [0] * places
        """By place, the tokens of the requests that it has."""
        self._holders: OrderedDict[int, set[int]] = OrderedDict()

    def choose(self, root: str, prompt: Sequence[int], new: int) -> tuple[int, int]:
        """(the place, the tokens that it is given) of a prompt under the cache's namespace `root`, with up to `new`
        tokens to sample. `finished` takes them back."""
        keys, key = [], hash(root)
        for start in range(0, len(prompt) - BLOCK + 1, BLOCK):
            key = hash((key, tuple(prompt[start : start + BLOCK])))
            keys.append(key)
        cached = [0] * len(self.load)
        left = set(range(len(self.load)))
        for key in keys:
            left &= self._holders.get(key, set())
            for place in left:
                cached[place] += BLOCK
        place = min(range(len(self.load)), key=lambda one: self.load[one] - 2 * cached[one])
        tokens = len(prompt) - cached[place] + new
        self.load[place] += tokens
        for key in keys:
            self._holders.setdefault(key, set()).add(place)
            self._holders.move_to_end(key)
        while len(self._holders) > REMEMBERED:
            self._holders.popitem(last=False)
        return place, tokens

    def finished(self, place: int, tokens: int) -> None:
        self.load[place] -= tokens


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
        self._router = Router(len(models))

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
            matcher=self._grammars.matcher(params.schema, root) if params.schema is not None else None,
            max_new=room,
            rng=random.Random(params.seed),
            ids=list(prompt),
        )
        place, tokens = self._router.choose(root, prompt, room)
        try:
            self._schedulers[place].submit(request)
            return await asyncio.wrap_future(request.future)
        except asyncio.CancelledError:
            request.future.cancel()
            raise
        finally:
            self._router.finished(place, tokens)

    @property
    def stats(self) -> Stats:
        """Of all schedulers together."""
        each = [scheduler.stats for scheduler in self._schedulers]
        return Stats(sum(one.steps for one in each), sum(one.prefilled for one in each))

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
