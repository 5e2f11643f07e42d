"""The in-process engine beside transformers' generate, on the same model, prompts and token counts, in one run.

    python benchmarks/engine.py [--model models/smollm2-135m-instruct] [--dtype float32] [--questions 8] [--samples 8]

Each question is sampled several times, as in self-training. transformers gets the whole set as one left-padded batch
(its own best case here: wide, one prefill, no barrier between batches); ours gets it as single requests, once in one
batch on all cores and once in a batch for each core (`workers`, the default). Every request makes exactly --tokens new
tokens, so the work is the same and only its organisation differs. A second turn then goes on from the first one's text:
transformers prefills it all again, ours only what is new. Each runs in a process of its own, in turns, --repeats times;
the best of each counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from inference.engine import Completion, SamplingParams
from inference.local.engine import LocalEngine
from ratchet.config import ModelConfig

FILLER = "The ferry carries salt and lentils between the islands, and its crew of nine sings at every landing. "
ENDLESS = {"type": "string", "minLength": 100_000}
"""A schema that no completion can finish: every request stops at max_tokens, in both engines alike."""


def prompts(engine: LocalEngine, questions: int) -> list[list[int]]:
    """One prompt a question, of 60 to 300 tokens, with a shared beginning."""
    texts = [
        f"Answer briefly.\n{FILLER * (2 + i % 8)}\nQuestion {i}: what does the ferry carry?" for i in range(questions)
    ]
    return [list(engine.format.encode(text)) for text in texts]


def padded_generate(model: torch.nn.Module, batch: list[list[int]], tokens: int) -> list[list[int]]:
    width = max(map(len, batch))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in batch])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch])
    out = model.generate(  # type: ignore[operator]
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=0.7,
        top_p=0.95,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
    )
    return [row[-tokens:] for row in out.tolist()]


async def ours(engine: LocalEngine, batch: list[list[int]], tokens: int) -> list[Completion]:
    calls = (
        engine.generate(row, SamplingParams(0.7, 0.95, tokens, seed=i, schema=ENDLESS)) for i, row in enumerate(batch)
    )
    return await asyncio.gather(*calls)


def measure(contender: str, options: argparse.Namespace) -> list[tuple[float, float]]:
    """(seconds, share of prompt tokens that were cached) of each turn."""
    logging.disable_progress_bar()
    workers = {"one batch": 1}.get(contender)
    engine = LocalEngine(ModelConfig(path=options.model, dtype=options.dtype, device="cpu", workers=workers))
    batch = [prompt for prompt in prompts(engine, options.questions) for _ in range(options.samples)]
    model = None
    with asyncio.Runner() as runner:
        if contender == GENERATE:
            runner.run(engine.close())  # gives the cores back
            dtype = getattr(torch, options.dtype)
            model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, trust_remote_code=False)
        found = []
        for tokens in (4, options.tokens, options.tokens):  # the first compiles the kernels
            began, cached = time.perf_counter(), 0.0
            if model is not None:
                said = padded_generate(model, batch[:2] if tokens == 4 else batch, tokens)
            else:
                made = runner.run(ours(engine, batch[:2] if tokens == 4 else batch, tokens))
                said, cached = [list(one.ids) for one in made], sum(one.cached_tokens for one in made)
            assert all(len(row) == tokens for row in said)
            found.append((time.perf_counter() - began, cached / sum(map(len, batch))))
            if tokens == options.tokens:
                batch = [[*row, *ids, *engine.format.encode("\nGo on.")] for row, ids in zip(batch, said, strict=True)]
        if model is None:
            runner.run(engine.close())
    return found[1:]


GENERATE = "transformers generate"
CONTENDERS = (GENERATE, "one batch", "a batch on each core")


def main() -> None:
    """Measure all contenders in turns, and print the ratios."""
    parser = argparse.ArgumentParser(description="the in-process engine beside transformers' generate")
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps(measure(options.contender, options)))
        return
    best: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.repeats):
        for name in CONTENDERS:
            command = [sys.executable, __file__, *sys.argv[1:], "--contender", name]
            turns = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            best[name] = [min(pair) for pair in zip(best.get(name, turns), turns, strict=True)]
    new = options.questions * options.samples * options.tokens
    print(f"{options.questions * options.samples} requests, {new} new tokens, {options.dtype}, {os.cpu_count()} cores")
    for number, turn in enumerate(("first turn", "second turn")):
        reference = best[GENERATE][number][0]
        for name in CONTENDERS:
            seconds, cached = best[name][number]
            print(
                f"{turn:12} {name:22} {new / seconds:6.0f} new tokens/s  {reference / seconds:4.1f} times generate  "
                f"{cached:4.0%} of prompt tokens cached"
            )


if __name__ == "__main__":
    main()
