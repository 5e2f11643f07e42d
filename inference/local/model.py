"""A transformers model run on packed tokens of many sequences, with attention over the paged cache.

Tokens of all sequences are laid end to end as one row [1, tokens], so no layer ever computes on padding, and attention,
which a model takes from the AttentionInterface, looks up which sequence a token belongs to. On a CPU the layers of the
commonest kinds of models run in code of our own (`Decoder`). Models whose layers have windows, states, sinks or
anything else than attention to all tokens before run one sequence after the other, each with transformers' own cache.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import logging
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.utils.logging import disable_progress_bar

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError, first_line
from ratchet.core.http.environment import hub_reason, leave_unreachable_hub
from ratchet.inference.local.attention import Packed, attention_kernel, tile_tokens
from ratchet.inference.local.cache import BLOCK, BlockPool, UnsharedPool
from ratchet.inference.local.decoder import KNOWN, Decoder
from ratchet.inference.local.linear import CpuLinear, Group, Head, LoraBank, adapt_to_cpu
from ratchet.inference.local.pairs import MIN_TOKENS, ROWS, prompt_kernel, suits
from ratchet.inference.local.vectors import Array
from ratchet.inference.weights import load_causal_model


def why_unpaged(config: Any, limit: int) -> str:
    """Say why sequences of up to `limit` tokens of a model need more than pages of keys and values; empty where they do
    not."""
    for layer in DynamicCache(config=config).layers:
        window = getattr(layer, "sliding_window", None)
        if type(layer) is not DynamicLayer and (window is None or window < limit):
            return f"its cache has a {type(layer).__name__}"
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    for one in rope.values() if all(isinstance(part, dict) for part in rope.values()) else [rope]:
        known = one.get("original_max_position_embeddings") or 0
        if one.get("rope_type") in {"dynamic", "longrope"} and known < limit:
            return f"its positions turn otherwise in texts of more than {known} tokens (rope_type: {one['rope_type']})"
    return ""


def use_plain_attention(model: Any) -> None:
    """Let a model attend in transformers' own way, by torch's kernel where the model supports it."""
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # gpt-oss has sinks
        model.set_attn_implementation("eager")


def what_runs(model: Any, device: str, has_decoder: bool, unpaged: str) -> Iterator[str]:
    """Yield lines for the log where it is not our decoder that runs a model."""
    name = type(model).__name__
    if device == "cuda":
        yield "vLLM is the engine for GPUs (engine: vllm); engine: local is made for CPUs"
    if unpaged:
        what = "sequences run one after the other, and every prompt is computed whole"
        yield f"{name} runs in transformers' own code and cache, since {unpaged}: {what}"
    elif device == "cpu" and not has_decoder:
        known = ", ".join(sorted(one.removesuffix("ForCausalLM") for one in KNOWN))
        yield f"{name} runs in transformers' own code; the decoder for CPUs has {known}"


logger = logging.getLogger(__name__)


@dataclass
class Chunk:
    """Tokens of one sequence in a step: `ids` come after `past` tokens that are already in `blocks`."""

    ids: list[int]
    past: int
    blocks: list[int]
    adapter: int
    """0 for the base model."""
    sampled: bool = True
    """Whether the logits after its last token are needed."""
    allowed: Array | None = None
    """Ids of the tokens whose logits these are; None for all."""


MOST_WORKERS = 4
"""Batches side by side on a CPU by default. More than that make each too narrow to use the memory's bandwidth well."""


MIN_APART = 64
"""Tokens for each thread of a worker from which on a thread computes the products of its own tokens, all weights being
read by each, in place of a part of each product."""


def even_cuts(work: Array, parts: int) -> list[int]:
    """Return bounds of `parts` ranges of items that have nearly the same sum of `work`."""
    shares = np.searchsorted(np.cumsum(work) - work / 2, work.sum() * np.arange(1, parts) / parts)
    return [0, *(int(share) for share in shares), len(work)]


@functools.cache
def cpu_threads() -> int:
    """Threads that torch may use; asked once, since the workers of an engine set it to their share."""
    return torch.get_num_threads()


class PackedModel:
    """Weights, cache and adapters of one model. Not thread-safe: the scheduler's thread alone calls `forward`.

    It is made for `workers` threads, each with its share of the cache and of the cores: `copy_for_worker` makes the
    others.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.device = torch.device(
            ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
        )
        dtype = getattr(torch, config.dtype)
        disable_progress_bar()
        leave_unreachable_hub(config.path)
        try:
            shape = AutoConfig.from_pretrained(
                config.path, revision=config.revision, trust_remote_code=False
            ).get_text_config()
        except Exception as error:  # the readers of damaged files raise anything
            raise UserError(f"{config.path}: cannot load the model: {hub_reason(error, config.path)}") from error
        self.model = load_causal_model(config.path, config.revision, dtype=dtype, attn_implementation="ratchet_paged")
        self.model.requires_grad_(False).eval().to(self.device)
        self.window: int = getattr(shape, "max_position_embeddings", None) or config.max_context
        unpaged = why_unpaged(self.model.config, min(self.window, config.max_context))
        self.is_paged = not unpaged
        """True if sequences share steps and the cache; else each is computed by itself, in transformers' own way."""
        self._decoder = None
        if self.device.type == "cpu":
            is_known = self.is_paged and Decoder.is_known(self.model)
            adapt_to_cpu(self.model, lays_out=not is_known)
            if is_known:
                self._decoder = Decoder(self.model)
        tables = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        self.vocabulary: int = min(table.weight.shape[0] for table in tables)
        """The number of token ids that have both an embedding and a logit."""
        heads = getattr(shape, "num_attention_heads", None) or 1
        kv_heads = getattr(shape, "num_key_value_heads", None) or heads
        head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // heads
        layers = shape.num_hidden_layers
        # On a CPU the cache and the adapters are float32 whatever the weights are, as all activations are.
        self._dtype = torch.float32 if self.device.type == "cpu" else dtype
        block_bytes = 2 * layers * kv_heads * BLOCK * head_dim * self._dtype.itemsize
        cores = cpu_threads()
        most = min(cores, MOST_WORKERS, config.batch) if self.device.type == "cpu" else 1
        self.workers = config.workers or most
        self.threads = max(1, cores // self.workers)
        """Threads of one worker."""
        blocks = max(2, int(config.cache_gb * 1e9 / block_bytes / self.workers))
        self._cache = (layers, kv_heads, head_dim, blocks, self._dtype, self.device)
        self._rounds_prompts = self.device.type == "cpu" and suits(dtype, head_dim)
        self._group = heads // kv_heads
        if self.device.type == "cpu" and self.is_paged:
            attention_kernel(self._group, head_dim)  # once, before there are threads
            if self._rounds_prompts:
                prompt_kernel(self._group, head_dim)
        self._open()
        if self.is_paged and self._decoder is None and (unpaged := self._why_pages_differ()):
            self.is_paged = False
            self.close()
            self._open()
        if unpaged:
            use_plain_attention(self.model)
        for line in what_runs(self.model, self.device.type, self._decoder is not None, unpaged):
            logger.warning("%s: %s", config.path, line)

    def _why_pages_differ(self) -> str:
        """Say why packed tokens over pages give other logits than the model alone; empty where they do not."""
        ids = np.linspace(0, self.vocabulary - 1, 24).astype(int).tolist()
        try:
            self.forward([Chunk(ids[:7], 0, [0], 0), Chunk(ids[7:18], 0, [1], 0)])
            paged = self.forward([Chunk(ids[18:], 11, [1, 0], 0)])[-1]
        except Exception as error:  # of the code of any model
            return f"it does not run over pages ({first_line(error)})"
        use_plain_attention(self.model)
        plain = self._next_logits(ids[7:], None)[-1]
        self.model.set_attn_implementation("ratchet_paged")
        return "" if (paged - plain).norm() <= 0.02 * plain.norm() else "its tokens do more than attend to those before"

    def copy_for_worker(self) -> PackedModel:
        """Return the same weights with a cache, adapters and threads of its own; for before an adapter is loaded."""
        other = copy.copy(self)
        shared = (*self.model.parameters(), *self.model.buffers(), self._threads)
        other.model = copy.deepcopy(self.model, {id(one): one for one in shared})
        other._open()
        return other

    def _open(self) -> None:
        self.pool = BlockPool(*self._cache) if self.is_paged else UnsharedPool(self._cache[3])
        # One torch thread in each: a step whose threads compute products of their own runs in these alone.
        self._threads = ThreadPoolExecutor(self.threads, "engine", torch.set_num_threads, (1,))
        self._head = self.model.get_output_embeddings()
        self.lora = LoraBank(self.model, self._head, self._dtype)
        for module in self.model.modules():
            if isinstance(module, Head | CpuLinear):
                module.threads, module.parts = self._threads, self.threads

    @torch.inference_mode()
    def forward(self, chunks: list[Chunk]) -> torch.Tensor:
        """Run one step; returns logits [rows, vocabulary], float32 on the CPU: a row for each chunk that is `sampled`.

        On a CPU those of tokens that are not allowed are undefined. Keys and values of the chunks' tokens are written
        to their blocks.
        """
        if isinstance(self.pool, UnsharedPool):
            return self._forward_alone(chunks, self.pool)
        packed = self._pack(chunks)
        ids = torch.tensor([[i for chunk in chunks for i in chunk.ids]], device=self.device)
        positions = torch.tensor(
            [[p for chunk in chunks for p in range(chunk.past, chunk.past + len(chunk.ids))]], device=self.device
        )
        ends = np.cumsum([len(chunk.ids) for chunk in chunks])
        needed = [end - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.sampled]
        rows = torch.tensor(needed, dtype=torch.int64, device=self.device)
        if not len(rows):  # of prompts that go on; a model of transformers wants one
            rows = torch.from_numpy(ends[-1:] - 1).to(self.device)
        self.lora.groups = self._groups(chunks, ends)
        self._head.allowed = [chunk.allowed for chunk in chunks if chunk.sampled]
        if self._decoder is not None:
            arguments = ids, positions, rows, packed, self.lora
            if len(packed.ranges) > 2:
                return self._head(self._threads.submit(self._decoder, *arguments).result())[0]
            return self._head(self._decoder(*arguments))[0]
        logits = self.model(
            input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=rows, packed=packed
        ).logits
        return logits[0].float().cpu()

    def _forward_alone(self, chunks: list[Chunk], pool: UnsharedPool) -> torch.Tensor:
        """`forward` of one sequence after the other. The tokens of a prompt wait for its last: a layer with a state
        takes several tokens only as the first."""
        rows = [torch.empty((0, self.vocabulary))]
        for chunk in chunks:
            if chunk.past == 0:
                pool.sequences[chunk.blocks[0]] = DynamicCache(config=self.model.config), []
            cache, waiting = pool.sequences[chunk.blocks[0]]
            waiting += chunk.ids
            if chunk.sampled:
                self._head.allowed = [chunk.allowed]
                self.lora.groups = [Group(chunk.adapter)] if chunk.adapter else []
                is_first = len(waiting) == chunk.past + len(chunk.ids)
                for ids in [waiting] if is_first else [[token] for token in waiting]:
                    logits = self._next_logits(ids, cache)
                rows.append(logits[:, : self.vocabulary])
                pool.sequences[chunk.blocks[0]] = cache, []
        return torch.cat(rows)

    def _next_logits(self, ids: list[int], cache: DynamicCache | None) -> torch.Tensor:
        row = torch.tensor([ids], device=self.device)
        logits = self.model(input_ids=row, past_key_values=cache, use_cache=cache is not None, logits_to_keep=1).logits
        return logits[0].float().cpu()

    def _groups(self, chunks: list[Chunk], ends: Array) -> list[Group]:
        adapters = {chunk.adapter for chunk in chunks}
        if len(adapters) == 1:
            return [Group(adapter) for adapter in adapters if adapter]
        groups = []
        sampled = [chunk.adapter for chunk in chunks if chunk.sampled]
        for adapter in sorted(adapters - {0}):
            used = [number for number, chunk in enumerate(chunks) if chunk.adapter == adapter]
            rows = [row for number in used for row in range(ends[number] - len(chunks[number].ids), ends[number])]
            kept = [row for row, used_by in enumerate(sampled) if used_by == adapter]
            both = (torch.tensor(some, dtype=torch.int64, device=self.device) for some in (rows, kept))
            groups.append(Group(adapter, *both))
        return groups

    def _pack(self, chunks: list[Chunk]) -> Packed:
        blocks, places = [], []
        pages = [chunk.blocks[: (chunk.past + len(chunk.ids) + BLOCK - 1) // BLOCK] for chunk in chunks]
        tables = np.zeros((len(chunks), max(map(len, pages))), np.int32)
        starts: list[int] = []  # tokens that no tile holds together with one before them
        tiles: list[tuple[int, int, int, int]] = []
        prompt_tiles: list[tuple[int, int, int, int, int]] = []
        long: list[tuple[int, int, torch.Tensor, int, torch.Tensor | None]] = []
        together = tile_tokens(self._group)
        at = 0
        for number, (chunk, used) in enumerate(zip(chunks, pages, strict=True)):
            n, end = len(chunk.ids), chunk.past + len(chunk.ids)
            for position in range(chunk.past, end):
                blocks.append(chunk.blocks[position // BLOCK])
                places.append(position % BLOCK)
            tables[number, : len(used)] = used
            if self._rounds_prompts and n >= MIN_TOKENS:
                prompt_tiles += [(at, n, number, chunk.past, row) for row in range(0, n * self._group, ROWS)]
                starts += range(at, at + n, ROWS // math.gcd(ROWS, self._group))
            elif self.device.type == "cpu":
                whole = n - n % together
                tiles += [(at + i, together, number, chunk.past + i + 1) for i in range(0, whole, together)]
                tiles += [(at + i, 1, number, chunk.past + i + 1) for i in range(whole, n)]
                starts += [*range(at, at + whole, together), *range(at + whole, at + n)]
            else:
                mask = None
                if chunk.past:
                    mask = torch.ones((n, end), dtype=torch.bool, device=self.device).tril(chunk.past)
                long.append((at, at + n, torch.tensor(used, device=self.device), end, mask))
            at += n
        short, prompts = np.array(tiles, np.int64).reshape(-1, 4), np.array(prompt_tiles, np.int64).reshape(-1, 5)
        if self._decoder is not None and self.threads > 1 and at >= self.threads * MIN_APART:
            attended = [np.arange(one.past + 1, one.past + len(one.ids) + 1) for one in chunks]
            bounds = even_cuts(self._decoder.token_work + np.concatenate(attended), self.threads)
            begins = np.array([*starts, at])
            ranges = np.unique(begins[np.searchsorted(begins, bounds, "right") - 1]).tolist()
            cuts = np.searchsorted(short[:, 0], ranges).tolist()
            prompt_cuts = np.searchsorted(prompts[:, 0] + prompts[:, 4] // self._group, ranges).tolist()
        else:
            ranges = [0, at]
            cuts = even_cuts(short[:, 1] * short[:, 3], self.threads)
            prompt_cuts = even_cuts(prompts[:, 3] + prompts[:, 4] // self._group + 1, self.threads)
        return Packed(
            pool=self.pool,
            write_blocks=torch.tensor(blocks, device=self.device),
            write_places=torch.tensor(places, device=self.device),
            tables=tables,
            tiles=short,
            cuts=cuts,
            prompt_tiles=prompts,
            prompt_cuts=prompt_cuts,
            ranges=ranges,
            chunks=long,
            threads=self._threads,
        )

    def close(self) -> None:
        self._threads.shutdown()


def model_fingerprint(config: ModelConfig) -> str:
    """Return a digest of a model: its configuration, tokenizer and weights, and the precision it runs in.

    Of weight files, the size, the header and 64 KB out of every 1/32 of the file are read: enough to tell any two
    trained versions apart without reading 15 GB at every start. A hub model is identified by name and revision.
    """
    digest = hashlib.sha256(f"{config.dtype}\n".encode())
    if config.template:
        digest.update(json.dumps(config.template, sort_keys=True).encode())
    if thoughts := config.thoughts.model_dump(exclude_none=True):
        digest.update(json.dumps(thoughts, sort_keys=True).encode())
    folder = Path(config.path)
    if not folder.is_dir():
        digest.update(f"{config.path}@{config.revision}".encode())
        return digest.hexdigest()[:16]
    for path in sorted(folder.iterdir()):
        if path.suffix in {".json", ".jinja", ".model", ".txt"}:
            digest.update(path.name.encode() + path.read_bytes())
        elif path.suffix in {".safetensors", ".bin"}:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}".encode())
            with path.open("rb") as file:
                for part in range(32):
                    file.seek(size * part // 32)
                    digest.update(file.read(65536))
    return digest.hexdigest()[:16]
