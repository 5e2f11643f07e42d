"""Linear layers on a CPU: products in the weights' number format, and the logits that are needed.

A vocabulary has tens of thousands of tokens, so the output layer takes as long as all others together when a small
model decodes. Most tokens of an action in JSON are the schema's: its grammar allows only some, and only their logits
are computed. Whole rows are a product with weights that were laid out for it (`PreparedWeights`), in one of three
orders, of which the weights' format and the processor decide:

    blocks      bfloat16 on a CPU with AVX512-BF16: pairs.py, for any number of tokens
    rows        as the model stores them: of a few tokens, reading takes longer than multiplying, and one output after
                the other is how memory is read fastest
    oneDNN's    the order that torch's compiler gives to weights that do not change, for more tokens than these
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from safetensors.torch import load

from ratchet.core.errors import UserError
from ratchet.core.numba_cache import inner, njit
from ratchet.inference.adapters import MERGE, read_uniform_adapter
from ratchet.inference.local.pairs import FEWEST, MULTIPLIES_PAIRS, OUTPUTS, in_blocks, multiply_blocks
from ratchet.inference.local.vectors import FAST_MATH, Array, as_float
from ratchet.inference.weights import layer_alone, linears

MOST_ALLOWED = 4096
"""The most allowed tokens whose weights are looked up one by one; of more, the whole row is computed."""
MAX_PRODUCTS = 128
"""The number of products whose compiled code oneDNN and torch keep. There is one for each number of tokens in a step
and each shape of weights. It takes half a megabyte, and 1,024 would be kept; to compile it again takes 1 ms."""


class Progress:
    """The progress of each part of some work, for parts that need what those before them did. Threads may use it at
    once."""

    def __init__(self, parts: int) -> None:
        self._steps: list[float] = [0] * parts
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def of(self, part: int) -> Iterator[None]:
        """While a part is worked on. One that fails counts as done: those after it must not wait for ever."""
        try:
            yield
        finally:
            self._reach(part, math.inf)

    def wait(self, part: int, step: int) -> None:
        """Say that a part has done a step, and wait until all parts before it have."""
        self._reach(part, step)
        with self._changed:
            self._changed.wait_for(lambda: all(done >= step for done in self._steps[:part]))

    def _reach(self, part: int, step: float) -> None:
        with self._changed:
            self._steps[part] = step
            self._changed.notify_all()


class CpuLinear(torch.nn.Linear):
    """A linear layer of transformers' own code, whose product alone is computed in the weight's number format."""

    threads: ThreadPoolExecutor
    parts: int
    """Number of threads that share a product."""
    prepared: PreparedWeights | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.prepared is None:
            return torch.nn.functional.linear(input.to(self.weight.dtype), self.weight, self.bias).to(input.dtype)
        out = self.prepared.times(input.reshape(-1, self.in_features), self.threads, self.parts)
        return out.to(input.dtype).view(*input.shape[:-1], self.out_features)


class Head(torch.nn.Linear):
    """The output layer: the hidden states of a step's rows [1, rows, size] -> float32 logits [1, rows, vocabulary].

    `allowed` is set before each forward pass: for each row the ids of the tokens whose logits are needed, in which case
    the others are undefined, or None for all.
    """

    allowed: Sequence[Array | None]
    threads: ThreadPoolExecutor
    parts: int
    """Number of threads that share the vocabulary."""
    prepared: PreparedWeights

    @staticmethod
    def prepare(linear: Any) -> None:
        """Make a linear layer one of these."""
        weight = linear.weight.detach()
        bias = None if linear.bias is None else linear.bias.detach()
        # oneDNN would round logits to bfloat16: one of 20 would have steps of 0.125.
        lays_out = weight.nbytes <= MOST_KEPT and (weight.dtype == torch.float32 or fits_blocks(weight))
        linear.__class__ = Head
        linear.prepared = PreparedWeights(weight, bias, weight, lays_out)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        hidden = input[0].to(self.weight.dtype if self.prepared.rounds else torch.float32)
        whole = [row for row, tokens in enumerate(self.allowed) if tokens is None]
        if len(whole) == len(hidden):
            return self.prepared.times(hidden, self.threads, self.parts)[None].float()
        logits = torch.empty((len(hidden), len(self.weight)))
        if whole:
            logits[whole] = self.prepared.times(hidden[whole], self.threads, self.parts).float()
        rows, weights, out = hidden.float().numpy(), as_numbers(self.weight.detach()), logits.numpy()
        bias = None if self.bias is None else self.bias.detach().float().numpy()
        for row, tokens in enumerate(self.allowed):
            if tokens is not None:
                some_tokens(rows[row], weights, tokens, out[row])
                if bias is not None:
                    out[row, tokens] += bias[tokens]
        return logits[None]


def adapt_to_cpu(model: Any, lays_out: bool) -> None:
    """Make a model's output layer a Head and its linear layers CpuLinear; where its weights are not in float32, compute
    everything but the products of these in float32, the logits included. `lays_out`: whether to lay the weights of
    linear layers out, a copy of up to MOST_KEPT bytes beside the weights themselves, which some models' code reads.

    In bfloat16 a hidden state or a logit keeps eight bits, and a logit of 20 has steps of 0.125. Rounding the factors
    of the products alone is as fast on a CPU, where they are what takes the time, and its distributions are several
    times nearer to those of float32.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # read at the process's first product
        os.environ.setdefault(cache, str(MAX_PRODUCTS))
    head = model.get_output_embeddings()
    if head.weight.dtype == torch.bfloat16:  # in which the head stays, whatever the embedding does that it may share
        head.weight = torch.nn.Parameter(head.weight.data, requires_grad=False)
    layers = [*linears(model).values()]
    kept = {id(tensor) for one in layers for tensor in one.parameters()}
    if head.weight.dtype == torch.bfloat16:
        kept.add(id(head.weight))
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in kept and tensor.is_floating_point():
            tensor.data = tensor.data.float()
    lays_out = lays_out and sum(one.weight.nbytes for one in layers) <= MOST_KEPT
    for one in layers:
        weight, bias = one.weight.detach(), None if one.bias is None else one.bias.detach()
        rows = weight if weight.dtype in FEW_TOKENS else None
        one.__class__ = CpuLinear
        one.prepared = PreparedWeights(weight, bias, rows) if lays_out else None
    Head.prepare(head)


# Weights


TOKENS = 32
"""Tokens of a step that oneDNN lays weights out for; it is right for any number, and at its best near this one."""
FEW_TOKENS = {torch.bfloat16: 3, torch.float32: 4}
"""By the weights' format: up to so many tokens read the weights in rows."""
MOST_KEPT = 1 << 30
"""Bytes that a second copy of a model's linear layers, or of its output layer, may take: larger ones have none."""
SHARED_WEIGHTS = 1 << 20
"""Threads share a product where each has at least this many weights to read, about 0.1 ms."""


@inner(fastmath=FAST_MATH, error_model="numpy")
def _logit(hidden: Array, weights: Array) -> Any:  # pragma: no cover - compiled
    total: Any = np.float32(0.0)
    for k in range(len(hidden)):
        total += hidden[k] * as_float(weights[k])
    return total


@njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", cache=True)
def whole_rows(hidden: Array, weights: Array, out: Array, first: int, last: int) -> None:  # pragma: no cover - compiled
    """out[:, v] = hidden @ weights[v] for the outputs first <= v < last.

    hidden [tokens, size] and out [tokens, outputs] are float32; weights [outputs, size] are float32 or the bits of
    bfloat16 as uint16.
    """
    for v in range(first, last):
        for t in range(len(hidden)):
            out[t, v] = _logit(hidden[t], weights[v])


@njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", cache=True)
def some_tokens(hidden: Array, weights: Array, tokens: Array, out: Array) -> None:  # pragma: no cover - compiled
    """out[v] = hidden @ weights[v] for each v of `tokens`; of one row, in the formats of `whole_rows`."""
    for v in tokens:
        out[v] = _logit(hidden, weights[v])


def share_work(threads: ThreadPoolExecutor, cuts: Sequence[int], work: Callable[[int, int], None]) -> None:
    """Do `work(first, end)` for the ranges between two cuts each: the first here, the others on `threads`."""
    here, *ranges = pairwise(cuts)
    others = [threads.submit(work, *one) for one in ranges]
    work(*here)
    for other in others:
        other.result()


def as_numbers(tensor: torch.Tensor) -> Array:
    """Return a tensor as the kernels take it: float32, or the bits of bfloat16."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor.float()).numpy()


def fits_blocks(weight: torch.Tensor) -> bool:
    """Return whether weights [outputs, inputs] are laid out in blocks here."""
    return MULTIPLIES_PAIRS and weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0


class PreparedWeights:
    """Weights [outputs, inputs] for products with any number of tokens."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor | None, lays_out: bool = True
    ) -> None:
        """`rows`: the same weights in rows, in float32 or bfloat16, where there are to be such; `lays_out`: whether to
        keep them in another order, for more tokens."""
        self._bias, self._dtype = bias, weight.dtype
        self._outputs, self._inputs = weight.shape
        self._blocks: Array | None = None
        self._weight: torch.Tensor | None = None
        self._is_packed = False
        self.rounds = lays_out and fits_blocks(weight)
        """True if the other factor is rounded to bfloat16, however many tokens there are."""
        self._rows = None if rows is None or self.rounds else as_numbers(rows)
        if self.rounds:
            self._blocks = in_blocks(weight)
        elif lays_out:
            self._weight = weight
            # Else each call makes this layout again. Not all builds of torch have it, and not for all formats on all
            # processors.
            with contextlib.suppress(AttributeError, RuntimeError):
                self._weight, self._is_packed = torch.ops.mkldnn._reorder_linear_weight(weight, TOKENS), True

    def __deepcopy__(self, memo: Any) -> PreparedWeights:
        return self  # nothing changes it: the copies of a model share it

    def times(self, x: torch.Tensor, threads: ThreadPoolExecutor, parts: int) -> torch.Tensor:
        """x [tokens, inputs] -> [tokens, outputs], in float32 or the weights' format, as up to `parts` threads give it.

        x is float32 or in the weights' format.
        """
        parts = max(1, min(parts, self._outputs * self._inputs // SHARED_WEIGHTS))
        if self._blocks is not None:
            out = self._by_blocks(x, self._blocks, threads, parts)
        elif self._rows is not None and (self._weight is None or len(x) <= FEW_TOKENS[self._dtype]):
            out = self._by_rows(x, self._rows, threads, parts)
        else:
            x = x.to(self._dtype)
            if self._is_packed:
                return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return torch.nn.functional.linear(x, self._weight, self._bias)  # type: ignore[arg-type]
        return out if self._bias is None else out + self._bias.float()

    def _by_blocks(self, x: torch.Tensor, weights: Array, threads: ThreadPoolExecutor, parts: int) -> torch.Tensor:
        tokens, blocks = len(x), -(-self._outputs // OUTPUTS)
        x = x.to(torch.bfloat16).contiguous()
        if tokens < FEWEST:
            x = torch.nn.functional.pad(x, (0, 0, 0, FEWEST - tokens))
        factors, sums = as_numbers(x), np.empty((len(x), blocks * OUTPUTS), np.float32)
        cuts = [blocks * part // parts for part in range(parts + 1)]
        share_work(threads, cuts, lambda first, last: multiply_blocks(factors, weights, sums, first, last))
        return torch.from_numpy(sums)[:tokens, : self._outputs].contiguous()

    def _by_rows(self, x: torch.Tensor, weights: Array, threads: ThreadPoolExecutor, parts: int) -> torch.Tensor:
        hidden = as_numbers(x.float().contiguous())
        sums = np.empty((len(x), self._outputs), np.float32)
        cuts = [self._outputs * part // parts for part in range(parts + 1)]
        share_work(threads, cuts, lambda first, last: whole_rows(hidden, weights, sums, first, last))
        return torch.from_numpy(sums)


# LoRA adapters applied at run time, per token: base and adapters share one batch and no restart is needed.
#
# y = W x + (alpha / r) B A x (Hu et al. 2021, section 4.1), where each packed token has its own adapter or none: a
# frozen role runs on the base model in the same step in which a trained role runs on its adapter.


@dataclass
class Group:
    """The packed tokens of one step that use one adapter; None when all do."""

    adapter: int
    rows: torch.Tensor | None = None
    last: torch.Tensor | None = None
    """The rows of the output layer, which sees only the tokens whose logits are needed."""


Pair = tuple[torch.Tensor, torch.Tensor]
"""A [inputs, rank] and B [rank, outputs], the second scaled."""


class LoraBank:
    """Adapters loaded into a model, in the format of its activations; `head` is its output layer.

    `groups` is set before each forward pass.
    """

    def __init__(self, model: torch.nn.Module, head: torch.nn.Module | None, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._head = head
        self._names = {name for name, _ in model.named_modules()}
        self._linears = {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        self._weights: dict[str, dict[int, Pair]] = {}
        self._joined: dict[tuple[tuple[str, ...], int], Pair | None] = {}
        self._count = 0
        self.groups: list[Group] = []

    def load(self, folder: str) -> int:
        """Load a PEFT LoRA folder; returns its number. UserError for anything but plain LoRA on linear layers."""
        adapter = read_uniform_adapter(folder)
        tensors, rank = load(adapter.weights), adapter.config["r"]
        scale = adapter.config["lora_alpha"] / (rank**0.5 if adapter.config.get("use_rslora") else rank)
        self._count += 1
        for name, layer in adapter.layers.items():
            module_name = layer_alone(name)
            linear = self._linears.get(module_name)
            if linear is None and module_name in self._names:
                raise UserError(f"{folder}: {module_name} is no linear layer, and only these can be applied; {MERGE}")
            if linear is None:
                raise UserError(f"{folder}: was trained for another model: this one has no layer {module_name}")
            if (layer.inputs, layer.outputs) != (linear.in_features, linear.out_features):
                raise UserError(f"{folder}: layer {module_name} has another shape in this model")
            down = tensors[layer.down].to(linear.weight.device, self._dtype)
            up = (tensors[layer.up].float() * scale).to(linear.weight.device, self._dtype)
            if module_name not in self._weights:
                self._weights[module_name] = {}
                linear.register_forward_hook(self._hook(self._weights[module_name]))
            self._weights[module_name][self._count] = (down.t().contiguous(), up.t().contiguous())
        return self._count

    def groups_within(self, first: int, end: int) -> list[Group]:
        """Return the adapters of a step's tokens first <= t < end, with rows counted from `first`."""
        found = []
        for group in self.groups:
            rows = group.rows
            if rows is not None:
                rows = rows[(rows >= first) & (rows < end)] - first
            if rows is None or len(rows):
                found.append(Group(group.adapter, rows))
        return found

    def add(
        self,
        names: tuple[str, ...],
        outputs: Sequence[int],
        x: torch.Tensor,
        output: torch.Tensor,
        groups: Sequence[Group],
    ) -> torch.Tensor:
        """Add to `output`, which several layers give side by side for x [tokens, inputs], what the adapters add to it.

        `outputs` are their numbers of outputs, `groups` the adapters of these tokens. The result is in the format of
        activations where an adapter adds to it.
        """
        for group in groups:
            if (names, group.adapter) not in self._joined:
                self._joined[names, group.adapter] = self._join(names, outputs, group.adapter)
            pair = self._joined[names, group.adapter]
            if pair is not None:
                output = output.to(self._dtype)
                _add(output, x, pair, group.rows)
        return output

    def _join(self, names: tuple[str, ...], outputs: Sequence[int], adapter: int) -> Pair | None:
        pairs = [self._weights.get(name, {}).get(adapter) for name in names]
        known = [pair[0] for pair in pairs if pair is not None]
        if not known:
            return None
        ups = [
            torch.zeros((0, size), dtype=self._dtype) if pair is None else pair[1]
            for pair, size in zip(pairs, outputs, strict=True)
        ]
        return torch.cat(known, dim=1), torch.block_diag(*ups)

    def _hook(self, weights: dict[int, Pair]) -> Any:
        def add_delta(module: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
            for group in self.groups:
                pair = weights.get(group.adapter)
                if pair is not None:
                    x = inputs[0].view(-1, inputs[0].shape[-1])
                    _add(output.view(-1, output.shape[-1]), x, pair, group.last if module is self._head else group.rows)
            return output

        return add_delta


def _add(output: torch.Tensor, x: torch.Tensor, pair: Pair, rows: torch.Tensor | None) -> None:
    if rows is None:
        output.addmm_(x @ pair[0], pair[1])
    else:
        output.index_add_(0, rows, x.index_select(0, rows) @ pair[0] @ pair[1])
