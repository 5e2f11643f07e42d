"""Causal attention over rows that lie one after the other in one sequence, without padding and without a mask.

`pack_attention` makes a model use transformers' FlashAttention 2 where flash-attn is installed, else
`packed_attention`, which is torch's own variable-length FlashAttention on a GPU in 16 bits, and elsewhere attends row
by row. Both take where rows begin from `cu_seq_lens_q`, which the collator of `training.padding_free` gives. Rows that
share their prompts (`training.batches`) are a tree of segments, which `packed_attention` attends to one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.utils import is_flash_attn_2_available

from ratchet.core.errors import UserError

NAME = "ratchet_packed"
LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers that both functions compute."""


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    segments: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one transformers layer: query (1, heads, tokens, size), key and value (1, fewer heads, tokens,
    size) to (1, tokens, heads, size). Row i has the positions from cu_seq_lens_q[i] to cu_seq_lens_q[i + 1]; without
    it, all of them are one row. `segments`: `training.batches.as_tree`."""
    if len(query) > 1 or attention_mask is not None or dropout:
        raise ValueError("packed attention takes one sequence of rows, without a mask or dropout")
    if cu_seq_lens_q is None or max_length_q is None:
        max_length_q = query.shape[2]
        cu_seq_lens_q = torch.tensor([0, max_length_q], dtype=torch.int32, device=query.device)
    if segments is None and query.is_cuda and value.dtype.itemsize == 2:
        out = flash_attention(query, key, value, cu_seq_lens_q, max_length_q, scaling, sliding_window)
    else:
        rows = [(*row, -1) for row in itertools.pairwise(cu_seq_lens_q.tolist())]
        places = rows if segments is None else segments.tolist()
        out = attention_by_segment(query, key, value, places, scaling, sliding_window)
    return out.transpose(1, 2), None


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """By torch's kernel for rows of different lengths: (1, heads, tokens, size) in 16 bits, `starts` of int32."""
    from torch.nn.attention.varlen import varlen_attn

    queries, keys, values = (part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value))
    out = varlen_attn(
        queries,
        keys,
        values,
        starts,
        starts,
        longest,
        longest,
        scale=scaling,
        window_size=(window - 1 if window else -1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out, torch.Tensor)
    return out.transpose(0, 1)[None]


def attention_by_segment(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    places: Sequence[tuple[int, int, int]],
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Each segment (start, end, parent's number) attends to those above it and itself: (1, heads, tokens, size)."""
    out = []
    for start, end, parent in places:
        spans = [(start, end)]
        while parent >= 0:
            *span, parent = places[parent]
            spans.insert(0, (span[0], span[1]))
        keys, values = (torch.cat([part[:, :, a:b] for a, b in spans], dim=2) for part in (key, value))
        out.append(attend_to_end(query[:, :, start:end], keys, values, scaling, window))
    return torch.cat(out, dim=2)


def attend_to_end(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, window: int | None
) -> torch.Tensor:
    """Causal attention of queries that stand at the end of the keys."""
    asked, known = query.shape[2], key.shape[2]
    mask = None
    if asked < known or (window and known > window):
        distance = torch.arange(known - asked, known, device=query.device)[:, None]
        distance = distance - torch.arange(known, device=query.device)
        mask = (distance >= 0) & (distance < window) if window else distance >= 0
    if query.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        return attention_by_products(query, key, value, mask, scaling)
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def attention_by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """The same by two matrix products, which autocast computes in 16 bits, and a softmax in float32.

    On a CPU torch's own function takes two to three times as long for it, most of it in the backward pass.
    """
    heads, asked, size = query.shape[1:]
    kv_heads, known = key.shape[1:3]
    if mask is None:
        mask = torch.ones((asked, known), dtype=torch.bool).tril(known - asked)
    rows = query.reshape(kv_heads, heads // kv_heads * asked, size)
    scores = torch.bmm(rows, key[0].transpose(1, 2)).view(kv_heads, -1, asked, known).float()
    scores = scores * (size**-0.5 if scaling is None else scaling) + torch.where(mask, 0.0, -torch.inf)
    shares = scores.softmax(-1).view(kv_heads, -1, known)
    return torch.bmm(shares, value[0]).view(1, heads, asked, size)


def pack_attention(model: Any, on_gpu: bool) -> None:
    """Make a PeftModel attend within rows that lie one after the other. UserError where its architecture cannot.

    `on_gpu`: whether it will be trained on a GPU; the trainer moves it there later.
    """
    base = model.get_base_model()
    shape = base.config.get_text_config()
    others = sorted(set(getattr(shape, "layer_types", None) or ()) - LAYERS)
    if getattr(shape, "attn_logit_softcapping", None):
        others.append("attention with capped logits")
    if any(hasattr(module, "sinks") for module in base.modules()):
        others.append("attention with sinks")
    if others or not getattr(base, "_supports_attention_backend", False):
        raise UserError(
            f"training.padding_free: a {shape.model_type} model has {others[0] if others else 'attention of its own'}, "
            "which cannot be computed over rows without padding; set training.padding_free=false"
        )
    if on_gpu and base.dtype in (torch.float16, torch.bfloat16) and is_flash_attn_2_available():
        base.set_attn_implementation("flash_attention_2")
        return
    AttentionInterface.register(NAME, packed_attention)
    base.set_attn_implementation(NAME)
