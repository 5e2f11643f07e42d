"""Linear layers on a CPU: products in the weights' number format, and the logits that are needed.

A vocabulary has tens of thousands of tokens, so the output layer takes as long as all others together when a small
model decodes. Most tokens of an action in JSON are the schema's: its grammar allows only some, and only their logits
are computed. Whole rows are a product with weights that were laid out for it (`PreparedWeights`).
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ratchet.inference.local.prepared import (
    FEW_TOKENS,
    MOST_KEPT,
    PreparedWeights,
    as_numbers,
    fits_blocks,
    some_tokens,
)
from ratchet.inference.local.vectors import Array
from ratchet.inference.weights import linears

MOST_ALLOWED = 4096
"""Of more allowed tokens than this the whole row is computed: looking weights up one by one takes longer each."""
MAX_PRODUCTS = 128
"""The number of products whose compiled code oneDNN and torch keep. There is one for each number of tokens in a step
and each shape of weights. It takes half a megabyte, and 1,024 would be kept; to compile it again takes 1 ms."""


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
