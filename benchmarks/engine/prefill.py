"""Prefill beside its limit: prompt tokens a second of the in-process engine, and of its matrix products alone.

As a program it measures the engine that PYTHONPATH leads to: python -P prefill.py MODEL DTYPE REPEATS
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from statistics import median
from typing import NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inference.completion import SamplingParams
from inference.footprint import footprint
from inference.local.cache import BLOCK
from inference.local.engine import LocalEngine
from inference.local.scheduler import PREFILL_TOKENS
from ratchet.config import ModelConfig

PROMPTS = (512, 2048)


class Prefill(NamedTuple):
    """Medians of one prompt length on one number of threads."""

    threads: int
    prompt: int
    seconds: float
    """From the request to its first token."""
    products: float
    """Seconds of the matrix products of all linear layers alone, without the output layer's."""
    operations: float
    """Multiplications and additions of these products."""
    attention: float
    """Those of attention's two products, of a token with itself and the tokens before it."""


def linear_shapes(model: str) -> list[tuple[int, int]]:
    """(in, out) of every linear layer but the output layer, in their order, from the model's configuration alone."""
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(model, trust_remote_code=False), trust_remote_code=False
        )
    head = empty.get_output_embeddings()
    layers = [one for one in empty.modules() if isinstance(one, torch.nn.Linear) and one is not head]
    return [(one.in_features, one.out_features) for one in layers]


def attention_operations(model: str, prompt: int) -> float:
    """Multiplications and additions of a prompt's queries with keys and of weights with values, in all layers."""
    config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 4.0 * config.num_hidden_layers * config.num_attention_heads * dim * prompt * (prompt + 1) / 2


class Products:
    """The matrix products of one chunk of a prompt: each layer has weights of its own, as in the model."""

    def __init__(self, shapes: list[tuple[int, int]], rows: int, dtype: torch.dtype) -> None:
        self.weights = [torch.randn(out, size).to(dtype) for size, out in shapes]
        self.inputs = {size: torch.randn(rows, size).to(dtype) for size, _ in shapes}
        self.operations = sum(2.0 * rows * size * out for size, out in shapes)

    @torch.inference_mode()
    def seconds(self) -> float:
        began = time.perf_counter()
        for weight in self.weights:
            torch.nn.functional.linear(self.inputs[weight.shape[1]], weight)
        return time.perf_counter() - began


def measure_prefill(model: str, dtype: str, repeats: int) -> list[Prefill]:
    """In turns on the threads that this process has: a prompt, which no cache holds, and the products of its chunks.

    The cache's memory has been used before, as in all but the first seconds of a run: there is room for one of the
    longest prompts, so that each prompt evicts earlier ones.
    """
    threads = torch.get_num_threads()
    products = Products(linear_shapes(model), PREFILL_TOKENS, getattr(torch, dtype))
    cache_gb = (max(PROMPTS) + 2 * BLOCK) * footprint(model, None, "float32").kv_bytes_per_token / 1e9
    config = {"path": model, "dtype": dtype, "device": "cpu", "max_context": max(PROMPTS) + 1, "workers": 1}
    engine = LocalEngine(ModelConfig.model_validate(config | {"cache_gb": cache_gb}))
    draw = random.Random(1)
    found = []
    with asyncio.Runner() as runner:

        def prefill(length: int) -> float:
            ids = [draw.randrange(1000, 40_000) for _ in range(length)]
            began = time.perf_counter()
            made = runner.run(engine.generate(ids, SamplingParams(0.0, max_tokens=1)))
            if made.cached_tokens:
                raise AssertionError("the prompt was in the cache")
            return time.perf_counter() - began

        prefill(max(PROMPTS))
        for length in PROMPTS:
            times: list[tuple[float, float]] = []
            for _ in range(repeats + 1):
                spent = prefill(length)
                times.append((spent, sum(products.seconds() for _ in range(length // PREFILL_TOKENS))))
            seconds, alone = (median(column) for column in zip(*times[1:], strict=True))  # torch prepares the first
            operations = products.operations * (length // PREFILL_TOKENS)
            attention = attention_operations(model, length)
            found.append(Prefill(threads, length, seconds, alone, operations, attention))
        runner.run(engine.close())
    return found


if __name__ == "__main__":
    print(json.dumps(measure_prefill(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
