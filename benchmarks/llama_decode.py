"""llama.cpp's library as a program that completes prompts, for `benchmarks.engine`.

It runs in an environment of its own (`make llama`) and imports nothing of Ratchet:

    .venv-llama/bin/python benchmarks/llama_decode.py model.gguf THREADS SEQUENCES CONTEXT TEMPERATURE TOP_P

Each line of stdin is a turn, {"prompts": [[ids], ...], "tokens": n}; the answer is {"ids": [[ids], ...], "cached": n}.
All sequences are one batch. A prompt that several have is computed once and its keys and values are copied, and what a
sequence has in common with its turn before is not computed again.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import llama_cpp as llama

BATCH = 512
"""Tokens in one call, llama.cpp's own default for prompts."""


class Sequences:
    """The sequences of a context, by number, and what is computed of each."""

    def __init__(self, path: str, threads: int, sequences: int, context: int, temperature: float, top_p: float) -> None:
        llama.llama_log_set(quiet, None)
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        settings = llama.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_seq_max = context, BATCH, sequences
        settings.n_threads = settings.n_threads_batch = threads
        settings.kv_unified = True  # else each sequence has the same share of the context
        self.context = llama.llama_init_from_model(self.model, settings)
        self.memory = llama.llama_get_memory(self.context)
        self.batch = llama.llama_batch_init(BATCH, 0, 1)
        self.samplers = [self._sampler(number, temperature, top_p) for number in range(sequences)]
        self.known: list[list[int]] = [[] for _ in range(sequences)]

    @staticmethod
    def _sampler(seed: int, temperature: float, top_p: float) -> Any:
        chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        for one in (
            llama.llama_sampler_init_temp(temperature),
            llama.llama_sampler_init_top_p(top_p, 1),
            llama.llama_sampler_init_dist(seed),
        ):
            llama.llama_sampler_chain_add(chain, one)
        return chain

    def compute(self, tokens: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        """Compute (sequence, position, id, whether to sample after it) of each token; the new ids by sequence."""
        new: dict[int, int] = {}
        for first in range(0, len(tokens), BATCH):
            part = tokens[first : first + BATCH]
            self.batch.n_tokens = len(part)
            for at, (sequence, position, token, sampled) in enumerate(part):
                self.batch.token[at], self.batch.pos[at] = token, position
                self.batch.n_seq_id[at], self.batch.seq_id[at][0] = 1, sequence
                self.batch.logits[at] = sampled
            if llama.llama_decode(self.context, self.batch):
                raise RuntimeError("llama_decode failed")
            for at, (sequence, _, _, sampled) in enumerate(part):
                if sampled:
                    new[sequence] = llama.llama_sampler_sample(self.samplers[sequence], self.context, at)
        return new

    def complete(self, prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], int]:
        """The new ids of each prompt, and the number of prompt tokens that were not computed."""
        ahead: list[tuple[int, int, int, bool]] = []
        leaders: dict[tuple[int, ...], int] = {}
        followers: list[tuple[int, int]] = []
        cached = 0
        for number, prompt in enumerate(prompts):
            known = self.known[number]
            if known != prompt[: len(known)]:
                known = []
                llama.llama_memory_seq_rm(self.memory, number, -1, -1)
            leader = leaders.setdefault(tuple(prompt), number)
            if leader != number and not known:
                followers.append((number, leader))
                cached += len(prompt) - 1
                continue
            cached += len(known)
            ahead += [(number, at, prompt[at], at == len(prompt) - 1) for at in range(len(known), len(prompt))]
        new = self.compute(ahead)
        for number, leader in followers:
            llama.llama_memory_seq_rm(self.memory, number, -1, -1)
            llama.llama_memory_seq_cp(self.memory, leader, number, 0, len(prompts[number]) - 1)
        new |= self.compute([(number, len(prompts[number]) - 1, prompts[number][-1], True) for number, _ in followers])
        made = [[new[number]] for number in range(len(prompts))]
        for _ in range(tokens - 1):
            step = [(n, len(prompts[n]) + len(ids) - 1, ids[-1], True) for n, ids in enumerate(made)]
            for number, token in self.compute(step).items():
                made[number].append(token)
        for number, ids in enumerate(made):
            self.known[number] = [*prompts[number], *ids[:-1]]
        return made, cached


@llama.llama_log_callback
def quiet(level: int, text: bytes, data: Any) -> None:
    """Nothing of the library's log."""


def main() -> None:
    path, threads, count, context, temperature, top_p = sys.argv[1:]
    sequences = Sequences(path, int(threads), int(count), int(context), float(temperature), float(top_p))
    for line in sys.stdin:
        turn = json.loads(line)
        ids, cached = sequences.complete(turn["prompts"], turn["tokens"])
        print(json.dumps({"ids": ids, "cached": cached}), flush=True)


if __name__ == "__main__":
    main()
