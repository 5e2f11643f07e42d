"""The layers of a Llama-like model on a CPU, with few and large steps in place of transformers' many small ones.

A layer of Llama, Mistral, Qwen2 or Qwen3 is four products of matrices, attention, norms, a rotation and a gate. Here
the products that share an input are one, their weights are laid out once in the order in which the processor's matrix
instructions read them, and what is between two products is one pass over the tokens. Rounding apart, the result is
transformers'; models of other kinds run in transformers' own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ratchet.core.numba_cache import njit
from ratchet.inference.local.attention import Packed, attend_range, attend_tiles
from ratchet.inference.local.linear import (
    FEW_TOKENS,
    MOST_KEPT,
    Group,
    LoraBank,
    PreparedWeights,
    Progress,
    as_numbers,
    fits_blocks,
    share_work,
)
from ratchet.inference.local.vectors import FAST_MATH, Array, as_float, exp, in_format_of
from ratchet.inference.weights import linears

KNOWN = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}


@njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", cache=True)
def add_and_normalise(
    hidden: Array, more: Array, weight: Array, epsilon: float, out: Array
) -> None:  # pragma: no cover - compiled
    """hidden += more, unless that is empty; out = hidden / sqrt(mean(hidden^2) + epsilon) * weight, by row.

    hidden float32 [tokens, size], weight float32 [size]; more, out float32 or the bits of bfloat16.
    """
    size = hidden.shape[1]
    for t in range(hidden.shape[0]):
        if more.shape[0] > 0:
            for i in range(size):
                hidden[t, i] += as_float(more[t, i])
        total = np.float32(0.0)
        for i in range(size):
            total += hidden[t, i] * hidden[t, i]
        share = np.float32(1.0 / np.sqrt(total / size + epsilon))
        for i in range(size):
            out[t, i] = in_format_of(out, hidden[t, i] * share * weight[i])


@njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", cache=True)
def normalise_heads(
    joined: Array, weights: Array, epsilon: float, query_heads: int, out: Array
) -> None:  # pragma: no cover - compiled
    """Each head of queries and keys / sqrt(mean(head^2) + epsilon) * its weight, as Qwen3 has it; values stay.

    joined as `rotate_and_store` takes it; weights float32 [2, dim]: of queries, of keys; out float32, as joined.
    """
    dim = weights.shape[1]
    keys_end = (joined.shape[1] // dim + query_heads) // 2
    for t in range(joined.shape[0]):
        for h in range(keys_end):
            weight = weights[0] if h < query_heads else weights[1]
            one, normalised = joined[t, h * dim : (h + 1) * dim], out[t, h * dim : (h + 1) * dim]
            total = np.float32(0.0)
            for d in range(dim):
                total += as_float(one[d]) * as_float(one[d])
            share = np.float32(1.0 / np.sqrt(total / dim + epsilon))
            for d in range(dim):
                normalised[d] = as_float(one[d]) * share * weight[d]
        for i in range(keys_end * dim, joined.shape[1]):
            out[t, i] = as_float(joined[t, i])


@njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", cache=True)
def rotate_and_store(
    joined: Array, cos: Array, sin: Array, query: Array, keys: Array, values: Array, blocks: Array, places: Array
) -> None:  # pragma: no cover - compiled
    """Rotate queries and keys by position (Su et al. 2021, arXiv 2104.09864), and put keys and values into their pages.

    joined [tokens, (heads + 2 kv_heads) * dim], float32 or the bits of bfloat16: query, key and value of each token.
    cos, sin float32 [tokens, dim]; query float32 [tokens, heads, dim], written; keys, values of one layer as in
    `BlockPool`; blocks, places: where each token's go.
    """
    tokens, heads, dim = query.shape
    kv_heads, half = keys.shape[1], dim // 2
    # In a page the numbers of one key lie apart: written where they are computed, they would keep LLVM from making
    # vector code of the rotation.
    key = np.empty(dim, np.float32)
    for t in range(tokens):
        block, place = blocks[t], places[t]
        row, c, s = joined[t], cos[t], sin[t]
        for h in range(heads + kv_heads):
            one = row[h * dim : (h + 1) * dim]
            turned = query[t, h] if h < heads else key
            for d in range(half):
                low, high = as_float(one[d]), as_float(one[half + d])
                turned[d] = low * c[d] - high * s[d]
                turned[half + d] = high * c[half + d] + low * s[half + d]
            if h >= heads:
                for d in range(dim):
                    keys[block, h - heads, d, place] = turned[d]
        for h in range(kv_heads):
            at = (heads + kv_heads + h) * dim
            one, value = row[at : at + dim], values[block, h, place]
            for d in range(dim):
                value[d] = as_float(one[d])


@njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", cache=True)
def gate(joined: Array, out: Array) -> None:  # pragma: no cover - compiled
    """out = silu(the first half of joined) * its second half, by row; out [tokens, size], as joined, float32 or the
    bits of bfloat16."""
    size = out.shape[1]
    for t in range(out.shape[0]):
        for i in range(size):
            x = as_float(joined[t, i])
            out[t, i] = in_format_of(out, x / (np.float32(1.0) + exp(-x)) * as_float(joined[t, size + i]))


class Product:
    """Linear layers with one input as one product; it takes their weights over, and they keep none."""

    def __init__(self, parts: dict[str, torch.nn.Linear], keeps_rows: bool) -> None:
        """`parts`: the layers by their names in the model, in the order of their outputs. `keeps_rows`: whether to
        keep the weights in rows too, for steps of few tokens, in bfloat16 unless that would round them."""
        layers = list(parts.values())
        self._shape = layers[0].in_features, [one.out_features for one in layers]
        self._names = tuple(parts)
        weight = torch.cat([one.weight.detach() for one in layers])
        biases = [one.bias.detach() for one in layers if one.bias is not None]
        keeps_rows = keeps_rows and weight.dtype in FEW_TOKENS and not fits_blocks(weight)
        rows = weight.to(torch.bfloat16) if keeps_rows else None
        if rows is not None and not torch.equal(rows.to(weight.dtype), weight):
            rows = None
        self._weights = PreparedWeights(weight, torch.cat(biases) if biases else None, rows)
        for one in layers:
            one.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)

    def __call__(
        self, x: torch.Tensor, adapters: LoraBank, groups: Sequence[Group], threads: ThreadPoolExecutor, parts: int
    ) -> torch.Tensor:
        """x [tokens, inputs] -> [tokens, outputs], in float32 or the weights' format, and in float32 with an adapter.

        x is float32 or, without an adapter, in the weights' format. `groups`: the tokens' adapters. Up to `parts`
        threads share the work.
        """
        out = self._weights.times(x, threads, parts)
        return adapters.add(self._names, self._shape[1], x, out, groups) if groups else out

    @property
    def size(self) -> int:
        return self._shape[0] * sum(self._shape[1])


@dataclass
class Part:
    """A range of a step's tokens on its way through the layers; its arrays are views of those of all tokens."""

    groups: list[Group]
    """The adapters of these tokens."""
    cos: Array
    sin: Array
    stream: Array
    """float32 [tokens, size]: the residual stream."""
    x: torch.Tensor
    """[tokens, size]: the input of a product, in the weights' format where no adapter needs more."""
    query: Array
    """float32 [tokens, heads, dim]."""
    mixed: torch.Tensor
    """[tokens, heads * dim], in the format of `x`: what attention gives."""
    blocks: Array
    places: Array
    more: torch.Tensor
    """The next addition to the residual stream: [tokens, size], in the format that its product gave, or empty."""


@dataclass(frozen=True)
class Layer:
    """One layer: its products, and the weights of its norms."""

    joined: Product
    """Queries, keys and values."""
    output: Product
    gate_and_up: Product
    down: Product
    before_attention: Array
    before_gate: Array
    of_heads: Array | None
    """[2, dim]: of each head of queries and of keys."""


class Decoder:
    """All layers of a model, up to the last norm. It has no state, so that the workers of an engine share it."""

    def __init__(self, model: Any) -> None:
        """`model`: one that `is_known`; its linear layers keep no weights of their own."""
        config, base = model.config, model.model
        self._embed, self._rotary = base.embed_tokens, base.rotary_emb
        self._heads = config.num_attention_heads
        self._epsilon = np.float32(base.norm.variance_epsilon)
        self._scale = base.layers[0].self_attn.scaling
        self._norm = base.norm.weight.detach().float().numpy()
        self._rounds = base.layers[0].mlp.down_proj.weight.dtype == torch.bfloat16
        self._layers = []
        keeps_rows = 2 * sum(one.weight.numel() for one in linears(model).values()) <= MOST_KEPT
        for number, one in enumerate(base.layers):

            def product(place: str, *names: str, number: int = number, one: Any = one) -> Product:
                owner = getattr(one, place)
                parts = {f"model.layers.{number}.{place}.{name}": getattr(owner, name) for name in names}
                return Product(parts, keeps_rows)

            attention, of_heads = one.self_attn, None
            if hasattr(attention, "q_norm"):
                norms = torch.stack([attention.q_norm.weight, attention.k_norm.weight])
                of_heads = norms.detach().float().numpy()
            self._layers.append(
                Layer(
                    product("self_attn", "q_proj", "k_proj", "v_proj"),
                    product("self_attn", "o_proj"),
                    product("mlp", "gate_proj", "up_proj"),
                    product("mlp", "down_proj"),
                    one.input_layernorm.weight.detach().float().numpy(),
                    one.post_attention_layernorm.weight.detach().float().numpy(),
                    of_heads,
                )
            )
        one = self._layers[0]
        weights = sum(product.size for product in (one.joined, one.output, one.gate_and_up, one.down))
        width = self._heads * base.layers[0].self_attn.head_dim
        self.token_work = 1.2 * weights / (2 * width)
        """One token's work without attention, in tokens that it would attend to in the same time: by the numbers of
        multiplications, and a fifth more for what is between the products (SmolLM2-135M with AVX512-BF16)."""

    @staticmethod
    def is_known(model: Any) -> bool:
        return type(model).__name__ in KNOWN and model.config.hidden_act == "silu"

    @torch.inference_mode()
    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, packed: Packed, adapters: LoraBank
    ) -> torch.Tensor:
        """ids, positions [1, tokens] -> float32 [1, len(rows), size], what goes into the output layer at `rows`.

        Each of `packed.ranges` of tokens is a thread's own, from the first layer to the last. A token attends to those
        before it, so that a thread waits for a layer's keys and values of the ranges before its own, and for nothing
        else. In a step with one range the calling thread runs the layers, and all threads share their attention.
        """
        hidden = self._embed(ids)[0].float()
        cos, sin = (one[0].contiguous().numpy() for one in self._rotary(hidden, positions))
        tokens, size = hidden.shape
        stream, dim = hidden.numpy(), packed.pool.keys.shape[3]
        # An adapter reads what goes into a layer before it is rounded.
        kind = torch.bfloat16 if self._rounds and not adapters.groups else torch.float32
        x, mixed = torch.empty((tokens, size), dtype=kind), torch.empty((tokens, self._heads * dim), dtype=kind)
        query = np.empty((tokens, self._heads, dim), np.float32)
        blocks, places = packed.write_blocks.numpy(), packed.write_places.numpy()
        parts = []
        for first, end in pairwise(packed.ranges):
            part = slice(first, end)
            views = cos[part], sin[part], stream[part], x[part], query[part], mixed[part], blocks[part], places[part]
            nothing = torch.empty((0, size), dtype=kind)
            parts.append(Part(adapters.groups_within(first, end), *views, more=nothing))

        results = as_numbers(mixed).reshape(tokens, self._heads, dim)
        progress = Progress(len(parts))

        def work(part: int, end: int) -> None:
            with torch.inference_mode(), progress.of(part):  # inference mode is each thread's own
                for number in range(len(self._layers)):
                    self._between(number, parts[part], packed, adapters)
                    if len(parts) == 1:
                        attend_tiles(query, number, self._scale, results, packed)
                    else:
                        progress.wait(part, number + 1)
                        attend_range(query, number, self._scale, results, packed, part, end)
                self._between(len(self._layers), parts[part], packed, adapters)

        with progress.of(0):  # also where the first part cannot even begin
            share_work(packed.threads, range(len(parts) + 1), work)
        more = torch.cat([part.more for part in parts])  # in float32 where an adapter gave any of it in float32
        last = torch.empty((len(rows), size))
        add_and_normalise(stream[rows.numpy()], as_numbers(more[rows]), self._norm, self._epsilon, last.numpy())
        return last[None]

    def _between(self, number: int, part: Part, packed: Packed, adapters: LoraBank) -> None:
        """Compute the end of one layer behind its attention, and the beginning of layer `number` before it."""
        x, rest = part.x, (adapters, part.groups, packed.threads, packed.sharing)
        if number > 0:
            layer = self._layers[number - 1]
            more = as_numbers(layer.output(part.mixed, *rest))
            add_and_normalise(part.stream, more, layer.before_gate, self._epsilon, as_numbers(x))
            gates = as_numbers(layer.gate_and_up(x, *rest))
            gated = torch.empty((len(gates), gates.shape[1] // 2), dtype=x.dtype)
            gate(gates, as_numbers(gated))
            part.more = layer.down(gated, *rest)
        if number < len(self._layers):
            layer = self._layers[number]
            add_and_normalise(part.stream, as_numbers(part.more), layer.before_attention, self._epsilon, as_numbers(x))
            joined = as_numbers(layer.joined(x, *rest))
            if layer.of_heads is not None:
                raw, joined = joined, np.empty(joined.shape, np.float32)
                normalise_heads(raw, layer.of_heads, self._epsilon, self._heads, joined)
            keys, values = packed.pool.keys[number].numpy(), packed.pool.values[number].numpy()
            rotate_and_store(joined, part.cos, part.sin, part.query, keys, values, part.blocks, part.places)
