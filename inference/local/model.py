"""A transformers model run on packed tokens of many sequences, with attention over the paged cache.

Any causal language model of transformers that takes its attention from the AttentionInterface works: tokens of all
sequences are laid end to end as one row [1, tokens], so no layer ever computes on padding, and `paged_attention`
looks up which sequence a token belongs to.

Decoding is where a small machine spends its time. Padding and concatenating caches costs more than attention itself
there, so each query token reads its own blocks in place, whatever the lengths of its neighbours (`attention_kernel`).
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig
from transformers.utils import logging

from inference.local.cache import BLOCK, BlockPool
from inference.local.linear import FAST_MATH, Array, Head, adapt_to_cpu
from inference.local.lora import Group, LoraBank
from inference.weights import load_causal_model
from ratchet.config import ModelConfig
from ratchet.errors import UserError, first_line
from ratchet.numba_cache import njit

# Chunks up to this many tokens of one sequence take the token kernel; longer ones are a matrix product each.
SHORT_CHUNK = 8


@dataclass
class Chunk:
    """Tokens of one sequence in a step: `ids` come after `past` tokens that are already in `blocks`."""

    ids: list[int]
    past: int
    blocks: list[int]
    adapter: int
    """0 for the base model."""
    allowed: Array | None = None
    """Ids of the tokens whose logits are needed after the chunk; None for all."""


@dataclass
class _Packed:
    """The layout of a step's tokens: the first `short` of them in chunks for the token kernel, then long chunks."""

    pool: BlockPool
    write_blocks: torch.Tensor
    write_places: torch.Tensor
    short: int
    tables: Array
    lengths: Array
    cuts: list[int]
    """Bounds of token ranges of nearly equal work, one for each thread."""
    long: list[tuple[int, int, torch.Tensor, int, torch.Tensor | None]]
    """(first token, end token, blocks, attended length, mask or None when nothing is cached)."""
    threads: ThreadPoolExecutor


@functools.cache
def attention_kernel(group: int, dim: int, block: int) -> Callable[..., None]:
    """Compile attention of single query tokens over paged keys and values, for one model's shape.

    group: query heads per key head; dim: head size; block: tokens a page. They are compile-time constants, so that
    the inner loops are unrolled vector code (twice as fast here as one kernel for all shapes).

    The kernel takes query, out [tokens, heads, dim]; keys, values [pages, kv_heads, block, dim]; tables [tokens, most
    pages], page numbers; lengths [tokens], how many positions each token attends to; scale; and the range of tokens to
    do, so that threads can share the work. Query head h reads key head h // group. It releases the GIL.
    """

    @njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", cache=True)  # type: ignore[untyped-decorator, unused-ignore]
    def attend(
        query: Array,
        keys: Array,
        values: Array,
        tables: Array,
        lengths: Array,
        scale: float,
        out: Array,
        first: int,
        last: int,
    ) -> None:  # pragma: no cover - compiled
        longest = 0
        for i in range(first, last):
            longest = max(longest, lengths[i])
        weights = np.empty((longest, group), np.float32)
        q = np.empty((group, dim), np.float32)
        mixed = np.empty((group, dim), np.float32)
        share = np.empty(group, np.float32)
        for i in range(first, last):
            n = lengths[i]
            pages = (n + block - 1) // block
            for h in range(keys.shape[1]):
                for g in range(group):
                    for d in range(dim):
                        q[g, d] = query[i, h * group + g, d] * scale
                        mixed[g, d] = 0.0
                for j in range(pages):
                    page = tables[i, j]
                    for t in range(min(block, n - j * block)):
                        for g in range(group):
                            dot: Any = np.float32(0.0)
                            for d in range(dim):
                                dot += q[g, d] * keys[page, h, t, d]
                            weights[j * block + t, g] = dot
                for g in range(group):
                    top = weights[0, g]
                    for t in range(n):
                        top = max(top, weights[t, g])
                    total: Any = np.float32(0.0)
                    for t in range(n):
                        weight: Any = np.float32(math.exp(weights[t, g] - top))
                        weights[t, g] = weight
                        total += weight
                    share[g] = np.float32(1.0) / total
                for j in range(pages):
                    page = tables[i, j]
                    for t in range(min(block, n - j * block)):
                        for g in range(group):
                            weight = weights[j * block + t, g]
                            for d in range(dim):
                                mixed[g, d] += weight * values[page, h, t, d]
                for g in range(group):
                    for d in range(dim):
                        out[i, h * group + g, d] = mixed[g, d] * share[g]

    return attend  # type: ignore[no-any-return, unused-ignore]


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packed: _Packed | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, tokens, dim], key and value [1, kv_heads, tokens, dim] -> [1, tokens, heads, dim]."""
    assert packed is not None
    heads, tokens, dim = query.shape[1:]
    scale = scaling if scaling is not None else dim**-0.5
    keys, values = packed.pool.keys[module.layer_idx], packed.pool.values[module.layer_idx]  # type: ignore[index]
    keys[packed.write_blocks, :, packed.write_places] = key[0].transpose(0, 1).to(keys.dtype)
    values[packed.write_blocks, :, packed.write_places] = value[0].transpose(0, 1).to(values.dtype)
    out = torch.empty((tokens, heads, dim), dtype=keys.dtype, device=query.device)
    if packed.short:
        kernel = attention_kernel(heads // key.shape[1], dim, BLOCK)
        rows = query[0, :, : packed.short].transpose(0, 1).contiguous().to(keys.dtype).numpy()
        place, key_pages, value_pages = out.numpy(), keys.numpy(), values.numpy()

        def part(first: int, last: int) -> None:
            kernel(rows, key_pages, value_pages, packed.tables, packed.lengths, np.float32(scale), place, first, last)

        others = [packed.threads.submit(part, *cut) for cut in zip(packed.cuts[1:], packed.cuts[2:], strict=False)]
        part(packed.cuts[0], packed.cuts[1])
        for other in others:
            other.result()
    for first, end, blocks, length, mask in packed.long:
        q = query[:, :, first:end]
        if mask is None:
            k, v = key[:, :, first:end], value[:, :, first:end]
        else:
            # [pages, kv_heads, BLOCK, dim] -> [1, kv_heads, length, dim]
            k = keys[blocks].transpose(0, 1).flatten(1, 2)[None, :, :length].to(q.dtype)
            v = values[blocks].transpose(0, 1).flatten(1, 2)[None, :, :length].to(q.dtype)
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=heads != key.shape[1]
        )
        out[first:end] = mixed[0].transpose(0, 1)
    return out[None].to(query.dtype), None


AttentionInterface.register("ratchet_paged", paged_attention)
AttentionMaskInterface.register("ratchet_paged", lambda *args, **kwargs: None)


MOST_WORKERS = 4
"""Batches side by side on a CPU by default. More than that make each too narrow to use the memory's bandwidth well."""


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
        logging.disable_progress_bar()
        try:
            shape = AutoConfig.from_pretrained(
                config.path, revision=config.revision, trust_remote_code=False
            ).get_text_config()
        except Exception as error:  # the readers of damaged files raise anything
            raise UserError(f"{config.path}: cannot load the model: {first_line(error)}") from error
        self.model = load_causal_model(config.path, config.revision, dtype=dtype, attn_implementation="ratchet_paged")
        if getattr(shape, "sliding_window", None) and getattr(shape, "use_sliding_window", True):
            raise UserError(f"{config.path}: the local engine has no sliding-window attention; serve it with vLLM")
        self.model.requires_grad_(False).eval().to(self.device)
        if self.device.type == "cpu":
            adapt_to_cpu(self.model)
        tables = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        self.vocabulary: int = min(table.weight.shape[0] for table in tables)
        """The number of token ids that have both an embedding and a logit."""
        self.window: int = shape.max_position_embeddings
        kv_heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
        head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
        layers = shape.num_hidden_layers
        # On a CPU the cache and the adapters are float32 whatever the weights are, as all activations are.
        self._dtype = torch.float32 if self.device.type == "cpu" else dtype
        block_bytes = 2 * layers * kv_heads * BLOCK * head_dim * self._dtype.itemsize
        cores = cpu_threads()
        most = min(cores, MOST_WORKERS, config.batch) if self.device.type == "cpu" else 1
        self.workers = config.workers or most
        self.threads = max(1, cores // self.workers)
        """Of one worker."""
        blocks = max(2, int(config.cache_gb * 1e9 / block_bytes / self.workers))
        self._cache = (layers, kv_heads, head_dim, blocks, self._dtype, self.device)
        self._token_kernel = self.device.type == "cpu"
        attention_kernel(shape.num_attention_heads // kv_heads, head_dim, BLOCK)  # once, before there are threads
        self._open()

    def copy_for_worker(self) -> PackedModel:
        """The same weights with a cache, adapters and threads of its own; for before an adapter is loaded."""
        other = copy.copy(self)
        shared = (*self.model.parameters(), *self.model.buffers(), self._threads)
        other.model = copy.deepcopy(self.model, {id(one): one for one in shared})
        other._open()
        return other

    def _open(self) -> None:
        self.pool = BlockPool(*self._cache)
        self._threads = ThreadPoolExecutor(max(1, self.threads - 1), "attention")
        self._head = self.model.get_output_embeddings()
        self.lora = LoraBank(self.model, self._head, self._dtype)
        if isinstance(self._head, Head):
            self._head.threads, self._head.parts = self._threads, self.threads

    @torch.inference_mode()
    def forward(self, chunks: list[Chunk]) -> torch.Tensor:
        """Run one step; returns logits [len(chunks), vocabulary], float32 on the CPU, after each chunk's last token.

        On a CPU those of tokens that are not in a chunk's `allowed` are undefined. Keys and values of the chunk's
        tokens are written to their blocks. Short chunks must come first.
        """
        packed = self._pack(chunks)
        ids = torch.tensor([[i for chunk in chunks for i in chunk.ids]], device=self.device)
        positions = torch.tensor(
            [[p for chunk in chunks for p in range(chunk.past, chunk.past + len(chunk.ids))]], device=self.device
        )
        ends = np.cumsum([len(chunk.ids) for chunk in chunks])
        self.lora.groups = self._groups(chunks, ends)
        self._head.allowed = [chunk.allowed for chunk in chunks]
        logits = self.model(
            input_ids=ids,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=torch.from_numpy(ends - 1).to(self.device),
            packed=packed,
        ).logits
        return logits[0].float().cpu()

    def is_short(self, tokens: int) -> bool:
        return self._token_kernel and tokens <= SHORT_CHUNK

    def _groups(self, chunks: list[Chunk], ends: Array) -> list[Group]:
        adapters = {chunk.adapter for chunk in chunks}
        if len(adapters) == 1:
            return [Group(adapter) for adapter in adapters if adapter]
        groups = []
        for adapter in sorted(adapters - {0}):
            used = [number for number, chunk in enumerate(chunks) if chunk.adapter == adapter]
            rows = [row for number in used for row in range(ends[number] - len(chunks[number].ids), ends[number])]
            groups.append(Group(adapter, *(torch.tensor(some, device=self.device) for some in (rows, used))))
        return groups

    def _pack(self, chunks: list[Chunk]) -> _Packed:
        blocks, places = [], []
        tables: list[list[int]] = []
        lengths: list[int] = []
        long: list[tuple[int, int, torch.Tensor, int, torch.Tensor | None]] = []
        at = 0
        for chunk in chunks:
            n, end = len(chunk.ids), chunk.past + len(chunk.ids)
            for position in range(chunk.past, end):
                blocks.append(chunk.blocks[position // BLOCK])
                places.append(position % BLOCK)
            pages = chunk.blocks[: (end + BLOCK - 1) // BLOCK]
            if self.is_short(n):
                assert not long, "short chunks come first"
                tables += [pages] * n
                lengths += range(chunk.past + 1, end + 1)
            else:
                mask = None
                if chunk.past:
                    mask = torch.ones((n, end), dtype=torch.bool, device=self.device).tril(chunk.past)
                long.append((at, at + n, torch.tensor(pages, device=self.device), end, mask))
            at += n
        table = np.zeros((len(tables), max(map(len, tables), default=0)), np.int32)
        for row, pages in zip(table, tables, strict=True):
            row[: len(pages)] = pages
        work = np.array(lengths, np.int64)
        shares = np.searchsorted(np.cumsum(work), work.sum() * np.arange(1, self.threads) / self.threads)
        return _Packed(
            pool=self.pool,
            write_blocks=torch.tensor(blocks, device=self.device),
            write_places=torch.tensor(places, device=self.device),
            short=len(lengths),
            tables=table,
            lengths=work,
            cuts=[0, *(int(s) for s in shares), len(lengths)],
            long=long,
            threads=self._threads,
        )

    def close(self) -> None:
        self._threads.shutdown()


def model_fingerprint(config: ModelConfig) -> str:
    """Digest of a model: its configuration, tokenizer and weights, and the precision it runs in.

    Of weight files, the size, the header and 64 KB out of every 1/32 of the file are read: enough to tell any two
    trained versions apart without reading 15 GB at every start. A hub model is identified by name and revision.
    """
    digest = hashlib.sha256(f"{config.dtype}\n".encode())
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
