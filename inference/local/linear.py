"""Linear layers on a CPU: products in the weights' number format, and the logits that are needed.

A vocabulary has tens of thousands of tokens, so the output layer takes as long as all others together when a small
model decodes. Most tokens of an action in JSON are the schema's: its grammar allows only some, and only their logits
are computed. Whole rows take a kernel that reads each weight once, in the format in which the model stores it, and
multiplies and adds in float32.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from inference.local.vectors import FAST_MATH, Array, as_float
from inference.weights import linears
from ratchet.numba_cache import inner, njit

MOST_ALLOWED = 4096
"""Of more allowed tokens than this the whole row is computed: looking weights up one by one takes longer each."""
FEW_ROWS = 4
"""Up to so many rows, reading the weights is what takes the time, and one token after the other is how memory is read
fastest."""
MAX_PRODUCTS = 128
"""The number of products whose compiled code oneDNN and torch keep. There is one for each number of tokens in a step
and each shape of weights. It takes half a megabyte, and 1,024 would be kept; to compile it again takes 1 ms."""


@inner(fastmath=FAST_MATH, error_model="numpy")
def _logit(hidden: Array, weights: Array) -> Any:  # pragma: no cover - compiled
    """hidden @ weights: [size] each, in the formats of `whole_rows`."""
    total: Any = np.float32(0.0)
    for k in range(len(hidden)):
        total += hidden[k] * as_float(weights[k])
    return total


@njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", cache=True)
def whole_rows(
    hidden: Array, rows: Array, weights: Array, out: Array, first: int, last: int
) -> None:  # pragma: no cover - compiled
    """out[r, v] = hidden[r] @ weights[v] for each r of `rows` and the tokens first <= v < last.

    hidden [tokens, size] and out [tokens, vocabulary] are float32; weights [vocabulary, size] are float32 or the bits
    of bfloat16 as uint16. More than FEW_ROWS are computed four rows by four tokens at a time: sixteen sums that stay in
    registers.
    """
    zero = np.float32(0.0)
    if len(rows) <= FEW_ROWS:
        for v in range(first, last):
            for r in rows:
                out[r, v] = _logit(hidden[r], weights[v])
        return
    end = len(rows) - 1
    for v in range(first, last, 4):
        v1, v2, v3 = min(v + 1, last - 1), min(v + 2, last - 1), min(v + 3, last - 1)
        for i in range(0, len(rows), 4):
            r0, r1, r2, r3 = rows[i], rows[min(i + 1, end)], rows[min(i + 2, end)], rows[min(i + 3, end)]
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = zero
            for k in range(weights.shape[1]):
                w0, w1 = as_float(weights[v, k]), as_float(weights[v1, k])
                w2, w3 = as_float(weights[v2, k]), as_float(weights[v3, k])
                a, b, c, d = hidden[r0, k], hidden[r1, k], hidden[r2, k], hidden[r3, k]
                a0 += a * w0
                a1 += a * w1
                a2 += a * w2
                a3 += a * w3
                b0 += b * w0
                b1 += b * w1
                b2 += b * w2
                b3 += b * w3
                c0 += c * w0
                c1 += c * w1
                c2 += c * w2
                c3 += c * w3
                d0 += d * w0
                d1 += d * w1
                d2 += d * w2
                d3 += d * w3
            out[r0, v], out[r0, v1], out[r0, v2], out[r0, v3] = a0, a1, a2, a3
            out[r1, v], out[r1, v1], out[r1, v2], out[r1, v3] = b0, b1, b2, b3
            out[r2, v], out[r2, v1], out[r2, v2], out[r2, v3] = c0, c1, c2, c3
            out[r3, v], out[r3, v1], out[r3, v2], out[r3, v3] = d0, d1, d2, d3


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


class Progress:
    """How far each part of some work is, for parts that need what those before them did. Threads may use it at once."""

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


class ReducedLinear(torch.nn.Linear):
    """A linear layer whose product alone is computed in the weight's number format."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(input.to(self.weight.dtype), self.weight, self.bias).to(input.dtype)


class Head(torch.nn.Linear):
    """The output layer: the hidden states of a step's rows [1, rows, size] -> float32 logits [1, rows, vocabulary].

    `allowed` is set before each forward pass: for each row the ids of the tokens whose logits are needed, in which case
    the others are undefined, or None for all.
    """

    allowed: Sequence[Array | None]
    threads: ThreadPoolExecutor
    parts: int
    """Number of threads that share the vocabulary."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = self.weight.detach()
        weights = (weight.view(torch.uint16) if weight.dtype == torch.bfloat16 else weight).numpy()
        hidden = input[0].float().contiguous().numpy()
        logits = np.empty((len(hidden), len(weights)), np.float32)
        for row, tokens in enumerate(self.allowed):
            if tokens is not None:
                some_tokens(hidden[row], weights, tokens, logits[row])
        rows = np.array([row for row, tokens in enumerate(self.allowed) if tokens is None], np.int64)
        if len(rows):
            cuts = [len(weights) * part // self.parts for part in range(self.parts + 1)]
            share_work(self.threads, cuts, functools.partial(whole_rows, hidden, rows, weights, logits))
        out = torch.from_numpy(logits)[None]
        return out if self.bias is None else out + self.bias.float()


def adapt_to_cpu(model: Any) -> None:
    """Make a model's output layer a Head and, where its weights are not in float32, compute everything but the products
    of the linear layers in float32, the logits included.

    In bfloat16 a hidden state or a logit keeps eight bits, and a logit of 20 has steps of 0.125. Rounding the factors
    of the products alone is as fast on a CPU, where they are what takes the time, and its distributions are several
    times nearer to those of float32.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # read at the process's first product
        os.environ.setdefault(cache, str(MAX_PRODUCTS))
    head = model.get_output_embeddings()
    if head.weight.dtype == torch.bfloat16:  # in which the head stays, whatever the embedding does that it may share
        head.weight = torch.nn.Parameter(head.weight.data, requires_grad=False)
    reduced = [*linears(model).values()]
    kept = {id(tensor) for one in reduced for tensor in one.parameters()}
    if head.weight.dtype == torch.bfloat16:
        kept.add(id(head.weight))
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in kept and tensor.is_floating_point():
            tensor.data = tensor.data.float()
    for one in reduced:
        if one.weight.dtype != torch.float32:
            one.__class__ = ReducedLinear
    head.__class__ = Head
