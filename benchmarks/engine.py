"""The in-process engine beside transformers' generate, on the same model, prompts and token counts, in one run.

    python benchmarks/engine.py [--model models/smollm2-135m-instruct] [--questions 8] [--samples 8]

Each question is sampled several times, as in self-training. transformers gets the whole set as one left-padded batch
(its own best case here: wide, one prefill, no barrier between batches); ours gets it as single requests. Every request
makes exactly --tokens new tokens, so the work is the same and only its organisation differs. A second turn then goes on
from the first one's text: transformers prefills it all again, ours only what is new.
"""

from __future__ import annotations

import argparse
import asyncio
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


def main() -> None:
    parser = argparse.ArgumentParser(description="the in-process engine beside transformers' generate")
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    logging.disable_progress_bar()
    engine = LocalEngine(ModelConfig(path=options.model, dtype="float32", device="cpu"))
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, trust_remote_code=False)
    batch = [prompt for prompt in prompts(engine, options.questions) for _ in range(options.samples)]
    new = len(batch) * options.tokens
    prompt_tokens = sum(map(len, batch))
    print(f"{len(batch)} requests, {prompt_tokens} prompt tokens, {new} new tokens, {torch.get_num_threads()} threads")
    with asyncio.Runner() as runner:
        runner.run(ours(engine, batch[:2], 4))  # compile the kernels
        padded_generate(model, batch[:2], 4)
        for turn in ("first turn", "second turn"):
            began = time.perf_counter()
            theirs = padded_generate(model, batch, options.tokens)
            their_time = time.perf_counter() - began
            began = time.perf_counter()
            mine = runner.run(ours(engine, batch, options.tokens))
            my_time = time.perf_counter() - began
            cached = sum(c.cached_tokens for c in mine) / sum(map(len, batch))
            print(
                f"{turn}: transformers {new / their_time:.0f} new tokens/s, ours {new / my_time:.0f} "
                f"({their_time / my_time:.1f} times; {cached:.0%} of prompt tokens cached)"
            )
            assert all(len(row) == options.tokens for row in theirs)
            batch = [[*row, *c.ids, *engine.format.encode("\nGo on.")] for row, c in zip(batch, mine, strict=True)]
        runner.run(engine.close())


if __name__ == "__main__":
    main()
