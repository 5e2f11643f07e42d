"""Weights of linear layers on a CPU, laid out once in the order in which a product of few or many tokens reads them.

There are three orders, of which the weights' format and the processor decide:

    blocks      bfloat16 on a CPU with AVX512-BF16: pairs.py, for any number of tokens
    rows        as the model stores them: of a few tokens, reading takes longer than multiplying, and one output after
                the other is how memory is read fastest
    oneDNN's    the order that torch's compiler gives to weights that do not change, for more tokens than these
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ratchet.core.numba_cache import inner, njit
from ratchet.inference.local.pairs import FEWEST, MULTIPLIES_PAIRS, OUTPUTS, in_blocks, multiply_blocks
from ratchet.inference.local.vectors import FAST_MATH, Array, as_float

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
    """hidden @ weights: [size] each, in the formats of `whole_rows`."""
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
    """A tensor as the kernels take it: float32, or the bits of bfloat16."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor.float()).numpy()


def fits_blocks(weight: torch.Tensor) -> bool:
    """Whether weights [outputs, inputs] are laid out in blocks here."""
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
        """Whether the other factor is rounded to bfloat16, however many tokens there are."""
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
