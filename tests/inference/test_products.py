"""Products of the in-process engine with weights that were laid out for them, the output layer's among them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.inference.local.decoder import Product
from ratchet.inference.local.linear import FEW_TOKENS, Head, LoraBank, PreparedWeights
from ratchet.inference.local.pairs import MULTIPLIES_PAIRS
from tests.helpers.pages import ROOT

pytestmark = pytest.mark.numeric


@pytest.mark.slow
def test_kernels_take_the_instructions_that_numba_compiles_them_for() -> None:
    """NUMBA_CPU_FEATURES, where it is set: what it leaves out cannot be compiled."""
    program = "from ratchet.inference.local import pairs, vectors; print(pairs.MULTIPLIES_PAIRS, vectors.WIDE)"
    for features, wide in (("+avx512f,+avx512bw,+avx512bf16", True), ("+avx2,+fma", False), ("", False)):
        environment = os.environ | {"NUMBA_CPU_FEATURES": features}
        words = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=environment, text=True).split()
        assert words == [str(wide)] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [37, 38])  # no multiples of the kernels' tiles; an odd one is not laid out in blocks
def test_the_output_layer_computes_whole_rows_and_the_tokens_that_are_asked_for(
    dtype: torch.dtype, parts: int, bias: bool, size: int
) -> None:
    torch.manual_seed(0)
    few, none = np.array([0, 41, 102]), np.empty(0, np.int64)
    several: list[list[Any]] = [[None], [few], [None, few, None, none, None, None, None]]
    for rows in several:
        head: Any = torch.nn.Linear(size, 103, bias=bias).to(dtype).requires_grad_(False)
        hidden = torch.randn(1, len(rows), size)
        Head.prepare(head)
        assert head.prepared.rounds == (MULTIPLIES_PAIRS and dtype == torch.bfloat16 and size == 38)
        factors = hidden.bfloat16().float() if head.prepared.rounds else hidden
        wanted = torch.nn.functional.linear(factors, head.weight.float(), head.bias.float() if bias else None)
        head.allowed, head.parts = rows, parts
        with ThreadPoolExecutor(2) as head.threads, torch.inference_mode():
            got = head(hidden)
        assert got.dtype == torch.float32 and got.shape == (1, len(rows), 103)
        for row, tokens in enumerate(rows):
            places = slice(None) if tokens is None else tokens
            torch.testing.assert_close(got[0, row, places], wanted[0, row, places], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_of_few_tokens_is_that_of_many(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    rounded = torch.nn.Linear(40, 37, bias=bias).bfloat16().to(dtype).requires_grad_(False)
    exact = torch.nn.Linear(40, 24, bias=bias).to(dtype).requires_grad_(False)  # in float32, bfloat16 would round it
    x = torch.randn(8, 40).to(dtype)
    for one in (rounded, exact):
        wanted = torch.nn.functional.linear(x.float(), one.weight.float(), one.bias.float() if bias else None)
        adapters = LoraBank(torch.nn.Module(), None, torch.float32)
        with torch.inference_mode():
            product = Product({"one": one}, keeps_rows=True)
            for tokens in (1, 2, FEW_TOKENS[dtype], FEW_TOKENS[dtype] + 1, 8):
                with ThreadPoolExecutor(1) as threads:
                    got = product(x[:tokens], adapters, [], threads, 1)
                close = 1e-5 if dtype == torch.float32 or MULTIPLIES_PAIRS else 1e-2
                torch.testing.assert_close(got.float(), wanted[:tokens], rtol=close, atol=close)


@pytest.mark.skipif(not MULTIPLIES_PAIRS, reason="this CPU has no AVX-512 instructions for bfloat16")
@pytest.mark.parametrize("shape", [(1, 2), (33, 40), (64, 576), (1800, 1200)])
def test_what_a_token_gives_in_bfloat16_depends_neither_on_the_others_nor_on_the_threads(
    shape: tuple[int, int],
) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(shape).bfloat16(), torch.randn(21, shape[1]).bfloat16()
    wanted = x.float() @ weight.float().T
    weights = PreparedWeights(weight, None, None)
    with ThreadPoolExecutor(2) as threads, torch.inference_mode():
        together = weights.times(x, threads, 1)
        torch.testing.assert_close(together, wanted, rtol=1e-5, atol=1e-4)
        for tokens in range(1, 22):
            for parts in (1, 3):
                assert torch.equal(weights.times(x[-tokens:], threads, parts), together[-tokens:])
