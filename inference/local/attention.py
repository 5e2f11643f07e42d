"""Attention over the paged cache: a kernel for the CPU, and transformers' interface to it for any model.

The kernel reads each sequence's pages in place, whatever the lengths of its neighbours. Several tokens of one sequence
go through its pages together, a tile, so that a page that was read is used for all of them, and the pages that
sequences share stay in the cache of the core while one key head is done for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from ratchet.core.numba_cache import njit
from ratchet.inference.local.cache import BLOCK, BlockPool
from ratchet.inference.local.linear import share_work
from ratchet.inference.local.pairs import prompt_kernel
from ratchet.inference.local.vectors import FAST_MATH, SUMS, Array, exp, in_format_of, page_mix, page_scores


@dataclass
class Packed:
    """The layout of a step's tokens, which are laid end to end, chunk after chunk."""

    pool: BlockPool
    write_blocks: torch.Tensor
    write_places: torch.Tensor
    tables: Array
    """int32 [chunks, most pages]: the pages of each chunk's sequence."""
    tiles: Array
    """int64 [tiles, 4], on a CPU: first token, how many, chunk, positions that the first token attends to."""
    cuts: list[int]
    """Bounds of ranges of tiles, one for each thread: those of its tokens, or of nearly equal work where there is one
    range of tokens."""
    prompt_tiles: Array
    """int64 [tiles, 5], on a CPU: those of long chunks that `prompt_kernel` computes, as it takes them."""
    prompt_cuts: list[int]
    """As `cuts`."""
    ranges: list[int]
    """Bounds of ranges of tokens, on a CPU: one for each thread that computes all of its tokens, products included; one
    range for all where the threads share each product."""
    chunks: list[tuple[int, int, torch.Tensor, int, torch.Tensor | None]]
    """On a GPU: (first token, end token, blocks, attended length, mask or None when nothing is cached)."""
    threads: ThreadPoolExecutor

    @property
    def sharing(self) -> int:
        """Number of threads that share each product."""
        return len(self.cuts) - 1 if len(self.ranges) == 2 else 1


def tile_tokens(group: int) -> int:
    """Return the tokens of a tile where `group` query heads share a key head."""
    return max(1, (SUMS * 2 // 3) // group)


@functools.cache
def attention_kernel(group: int, dim: int) -> Callable[..., None]:
    """Compile attention of tiles of query tokens over paged keys and values, for one model's shape.

    group: query heads per key head; dim: head size. They are compile-time constants, so that the inner loops are vector
    code.

    The kernel takes query, out [tokens, heads, dim]; keys [pages * kv_heads * dim * BLOCK], values [pages * kv_heads *
    BLOCK * dim], flat; kv_heads; tables and tiles as in `Packed`, each tile of one token or of `tile_tokens(group)`;
    scale; and the range of tiles to do. Query head h reads key head h // group. It releases the GIL.
    """
    together = tile_tokens(group)
    many, block = together * group, BLOCK

    @njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", cache=True)  # type: ignore[untyped-decorator, unused-ignore]
    def attend(
        query: Array,
        keys: Array,
        values: Array,
        kv_heads: int,
        tables: Array,
        tiles: Array,
        scale: float,
        out: Array,
        first: int,
        last: int,
    ) -> None:  # pragma: no cover - compiled
        scores = np.empty((many, tables.shape[1] * block), np.float32)
        q = np.empty((many, dim), np.float32)
        mixed = np.empty((many, dim), np.float32)
        for h in range(kv_heads):
            for i in range(first, last):
                token, count, row, length = tiles[i, 0], tiles[i, 1], tiles[i, 2], tiles[i, 3]
                rows = count * group
                for r in range(rows):
                    for d in range(dim):
                        q[r, d] = query[token + r // group, h * group + r % group, d] * scale
                        mixed[r, d] = 0.0
                end = length + count - 1
                pages = (end + block - 1) // block
                for j in range(pages):
                    at = (np.int64(tables[row, j]) * kv_heads + h) * (dim * block)
                    if count == 1:
                        page_scores(q, keys, at, scores, j * block, group, dim, block)
                    else:
                        page_scores(q, keys, at, scores, j * block, many, dim, block)
                for r in range(rows):
                    n = length + r // group
                    top = scores[r, 0]
                    for t in range(n):
                        top = max(top, scores[r, t])
                    total = np.float32(0.0)
                    for t in range(n):
                        weight = exp(scores[r, t] - top)
                        scores[r, t] = weight
                        total += weight
                    share = np.float32(1.0) / total
                    for t in range(n):
                        scores[r, t] *= share
                    scores[r, n:end] = 0.0
                for j in range(pages):
                    at = (np.int64(tables[row, j]) * kv_heads + h) * (dim * block)
                    used = min(block, end - j * block)
                    if count == 1:
                        page_mix(scores, j * block, values, at, used, mixed, group, dim)
                    else:
                        page_mix(scores, j * block, values, at, used, mixed, many, dim)
                for r in range(rows):
                    for d in range(dim):
                        out[token + r // group, h * group + r % group, d] = in_format_of(out, mixed[r, d])

    return attend  # type: ignore[no-any-return, unused-ignore]


def attend_tiles(query: Array, layer: int, scale: float, out: Array, packed: Packed) -> None:
    """Attention of all tokens of a step on a CPU: query float32 [tokens, heads, dim], out the same or in bfloat16."""

    def work(first: int, end: int) -> None:
        attend_range(query, layer, scale, out, packed, first, end)

    share_work(packed.threads, range(len(packed.cuts)), work)


def attend_range(query: Array, layer: int, scale: float, out: Array, packed: Packed, first: int, end: int) -> None:
    """Compute `attend_tiles` for the tiles from one of the cuts to another."""
    keys, values = packed.pool.keys[layer], packed.pool.values[layer]
    kv_heads, dim = keys.shape[1:3]
    group = query.shape[1] // kv_heads
    flat = keys.view(-1).numpy(), values.view(-1).numpy()
    kinds = (attention_kernel, packed.tiles, packed.cuts), (prompt_kernel, packed.prompt_tiles, packed.prompt_cuts)

    for kernel, tiles, cuts in kinds:
        if cuts[first] < cuts[end]:
            arguments = packed.tables, tiles, np.float32(scale), out, cuts[first], cuts[end]
            kernel(group, dim)(query, *flat, kv_heads, *arguments)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packed: Packed | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, tokens, dim], key and value [1, kv_heads, tokens, dim] -> [1, tokens, heads, dim].

    NotImplementedError for scores that are capped (Gemma 2) or that a sink takes a part of (gpt-oss).
    """
    if packed is None or softcap is not None or s_aux is not None:
        raise NotImplementedError("attention over pages is plain softmax attention")
    heads, tokens, dim = query.shape[1:]
    scale = scaling if scaling is not None else dim**-0.5
    layer: int = module.layer_idx  # type: ignore[assignment]
    keys, values = packed.pool.keys[layer], packed.pool.values[layer]
    keys[packed.write_blocks, :, :, packed.write_places] = key[0].transpose(0, 1).to(keys.dtype)
    values[packed.write_blocks, :, packed.write_places] = value[0].transpose(0, 1).to(values.dtype)
    out = torch.empty((tokens, heads, dim), dtype=keys.dtype, device=query.device)
    if query.device.type == "cpu":
        attend_tiles(query[0].transpose(0, 1).float().contiguous().numpy(), layer, scale, out.numpy(), packed)
    for first, end, blocks, length, mask in packed.chunks:
        q = query[:, :, first:end]
        if mask is None:
            k, v = key[:, :, first:end], value[:, :, first:end]
        else:
            # [pages, kv_heads, dim, BLOCK] and [pages, kv_heads, BLOCK, dim] -> [1, kv_heads, length, dim]
            k = keys[blocks].permute(1, 0, 3, 2).flatten(1, 2)[None, :, :length].to(q.dtype)
            v = values[blocks].transpose(0, 1).flatten(1, 2)[None, :, :length].to(q.dtype)
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=heads != key.shape[1]
        )
        out[first:end] = mixed[0].transpose(0, 1)
    return out[None].to(query.dtype), None


AttentionInterface.register("ratchet_paged", paged_attention)
AttentionMaskInterface.register("ratchet_paged", lambda *args, **kwargs: None)
