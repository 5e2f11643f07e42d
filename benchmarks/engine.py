"""The in-process engine beside transformers' generate and vLLM's build for CPUs.

    python -m benchmarks.engine [--dtype bfloat16] [--requests 1,8,24,64] [--samples 8] [--tokens 24] [--repeats 2]

Each question is sampled several times, as in self-training. transformers gets all requests as one left-padded batch;
the engine and vLLM get single requests, the engine once with its default workers and once as one batch on all cores.
Every request makes exactly --tokens new tokens, so the work is the same and only its organisation differs. In a second
turn every request continues the text that it made in the first. Each contender runs in a process of its own. They are
measured one after the other, --repeats times, and the best of each counts. vLLM is left out where there is none
(`make vllm`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]
import torch
from rich.table import Table
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from ratchet.core.config import ModelConfig
from ratchet.core.config.models import ServeConfig
from ratchet.core.tables import new_table, print_table
from ratchet.inference.chat import ChatFormat
from ratchet.inference.chat_formats import WrapperFormat
from ratchet.inference.completion import SamplingParams
from ratchet.inference.http.connection import token_completions, token_request
from ratchet.inference.http.vllm import HttpEngine
from ratchet.inference.local.engine import LocalEngine
from ratchet.inference.serving.server import Server, reserve_port
from ratchet.inference.serving.specs import GB, Placement, ServerSpec, server_command, server_environment
from ratchet.inference.tokenizer import load_tokenizer

GENERATE, VLLM, ENGINE, ONE_BATCH = "generate", "vLLM", "engine", "one batch"
CONTENDERS = (GENERATE, VLLM, ENGINE, ONE_BATCH)
FILLER = "The ferry carries salt and lentils between the islands, and its crew of nine sings at every landing. "
ENDLESS = {"type": "string", "minLength": 100_000}
"""A schema that no completion can finish: every request stops at max_tokens."""
CONTEXT = 4096
TEMPERATURE, TOP_P = 0.7, 0.95


class Turn(NamedTuple):
    """One turn of all requests."""

    seconds: float
    cpu: float
    """CPU seconds of all threads and processes, which other work on the machine changes less."""
    cached: float
    """Share of the prompt tokens that came out of the prefix cache."""


Best = Mapping[tuple[str, int], Sequence[Turn]]
"""The turns of a contender at a number of requests."""


def question_prompts(encode: ChatFormat, requests: int, samples: int, salt: str) -> list[list[int]]:
    """One prompt for each request, of 60 to 300 tokens. Those of a question are the same, and all have a beginning in
    common, which holds `salt`: prompts with another salt find nothing in the cache."""
    texts = [
        f"Answer briefly ({salt}).\n{FILLER * (2 + i % 8)}\nQuestion {i}: what does the ferry carry?"
        for i in range(-(-requests // samples))
    ]
    prompts = [list(encode.encode(text)) for text in texts]
    return [list(prompts[i // samples]) for i in range(requests)]


class Generate:
    """All requests as one left-padded batch: its own best case here, wide, with one prefill."""

    def __init__(self, model: ModelConfig) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            model.path, dtype=getattr(torch, model.dtype), trust_remote_code=False
        )

    async def complete(self, prompts: Sequence[list[int]], tokens: int) -> tuple[list[list[int]], int]:
        """The new ids of every prompt, and the number of prompt tokens that came out of a cache."""
        width = max(map(len, prompts))
        out = self.model.generate(
            input_ids=torch.tensor([[0] * (width - len(row)) + row for row in prompts]),
            attention_mask=torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts]),
            do_sample=True,
            temperature=TEMPERATURE,
            top_p=TOP_P,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
        return [row[-tokens:] for row in out.tolist()], 0

    async def close(self) -> None: ...


class Local:
    """Single requests to the in-process engine."""

    def __init__(self, model: ModelConfig) -> None:
        self.engine = LocalEngine(model)

    async def complete(self, prompts: Sequence[list[int]], tokens: int) -> tuple[list[list[int]], int]:
        made = await asyncio.gather(
            *(
                self.engine.generate(row, SamplingParams(TEMPERATURE, TOP_P, tokens, seed=i, schema=ENDLESS))
                for i, row in enumerate(prompts)
            )
        )
        return [list(one.ids) for one in made], sum(one.cached_tokens for one in made)

    async def close(self) -> None:
        await self.engine.close()


class Vllm:
    """Single requests over HTTP to a vLLM server on both cores, with its prefix cache.

    They carry no schema, which is to vLLM's advantage: they end at max_tokens since they ignore the ends of turns.
    """

    def __init__(self, model: ModelConfig, python: str, concurrency: int) -> None:
        self.port = reserve_port()
        key = secrets.token_hex(16)
        config = model.model_copy(update={"engine": "vllm", "send_seed": False})
        os.environ[config.api_key_env] = key
        # Blocks of 128 tokens, its default on a CPU, share little of short prompts; 32 is the least of its fast kernel.
        settings = ServeConfig(python=python, arguments={"block-size": 32})
        spec, placement = ServerSpec(("vllm",), config, settings), Placement(kv_bytes=2 * GB, concurrency=concurrency)
        # By default vLLM leaves one core to its other processes, which have little to do here.
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", cores)
        self.server = Server(
            title="vLLM",
            command=server_command(spec, placement, self.port.getsockname()[1]),
            environment=server_environment(spec, placement) | {"VLLM_API_KEY": key, "VLLM_CPU_OMP_THREADS_BIND": bound},
            served_name=spec.served_name,
            log=Path(tempfile.gettempdir(), "benchmark-vllm.log"),
            port_socket=self.port,
            ready_timeout=400.0,
            restarts=0,
        )
        self.engine = HttpEngine(config.model_copy(update={"url": self.server.url, "concurrency": concurrency}))

    async def complete(self, prompts: Sequence[list[int]], tokens: int) -> tuple[list[list[int]], int]:
        params = SamplingParams(TEMPERATURE, TOP_P, tokens)
        chat, name = self.engine.format, self.server.served_name

        async def ask(row: list[int]) -> tuple[list[int], int]:
            body = token_request(name, row, params, tokens, chat, send_seed=False)
            body |= {"stop_token_ids": [], "ignore_eos": True}
            answer = await self.engine.connection.json("POST", "completions", body)
            [completion] = token_completions(answer, row, params, chat)
            return list(completion.ids), completion.cached_tokens

        made = await asyncio.gather(*map(ask, prompts))
        return [ids for ids, _ in made], sum(cached for _, cached in made)

    async def close(self) -> None:
        await self.engine.close()
        await self.server.stop()
        self.port.close()


def cpu_seconds() -> float:
    """CPU time of this process and those that it started, which still run."""
    own = psutil.Process()
    times = [one.cpu_times() for one in (own, *own.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


async def measure(name: str, options: argparse.Namespace) -> dict[int, list[Turn]]:
    """By number of requests, what one contender took for the first and for the second turn."""
    workers = 1 if name == ONE_BATCH else None
    model = ModelConfig.model_validate(
        {"path": options.model, "dtype": options.dtype, "device": "cpu", "max_context": CONTEXT, "workers": workers}
    )
    contender: Generate | Vllm | Local
    if name == GENERATE:
        contender = Generate(model)
    elif name == VLLM:
        contender = Vllm(model, options.vllm, max(options.requests))
        await contender.server.start()
    else:
        contender = Local(model)
    chat = WrapperFormat.from_tokenizer(load_tokenizer(options.model, None), options.model)

    async def two_turns(requests: int, tokens: int, salt: str) -> list[Turn]:
        clock = asyncio.get_running_loop().time
        prompts, found = question_prompts(chat, requests, options.samples, salt), []
        for _ in range(2):
            began, used = clock(), cpu_seconds()
            made, cached = await contender.complete(prompts, tokens)
            found.append(Turn(clock() - began, cpu_seconds() - used, cached / sum(map(len, prompts))))
            if any(len(ids) != tokens for ids in made):
                raise AssertionError(f"not {tokens} new tokens for each request: {[len(ids) for ids in made]}")
            prompts = [[*row, *ids, *chat.encode("\nGo on.")] for row, ids in zip(prompts, made, strict=True)]
        return found

    try:
        await two_turns(2, 4, "to compile what is compiled at first use")
        return {requests: await two_turns(requests, options.tokens, str(requests)) for requests in options.requests}
    finally:
        await contender.close()


def better(one: Sequence[Turn], other: Sequence[Turn]) -> list[Turn]:
    """The faster of each turn, with the least CPU time of both."""
    pairs = zip(one, other, strict=True)
    return [min(a, b, key=lambda turn: turn.seconds)._replace(cpu=min(a.cpu, b.cpu)) for a, b in pairs]


def decoding_table(best: Best, tokens: int, title: str) -> Table:
    """New tokens a second of every contender, in wall time and in CPU time, and the ratios of the engine to others."""
    names = [name for name in CONTENDERS if any(name == measured for measured, _ in best)]
    counts = sorted({requests for _, requests in best})
    references = [name for name in (GENERATE, VLLM) if name in names and ENGINE in names]
    numbers = ("requests", *names, *(f"{ENGINE} / {name}" for name in references))
    table = new_table(title, ("per second of", "turn"), numbers)
    for clock, number, requests in product(("wall time", "CPU time"), range(2), counts):
        turns = {name: best[name, requests][number] for name in names}
        seconds = {name: turn.seconds if clock == "wall time" else turn.cpu for name, turn in turns.items()}
        rates = [f"{requests * tokens / seconds[name]:.0f}" for name in names]
        ratios = [f"{seconds[name] / seconds[ENGINE]:.1f}" for name in references]
        table.add_row(clock, ("first", "second")[number], str(requests), *rates, *ratios)
    return table


def cached_line(best: Best) -> str:
    """The shares of prompt tokens that came out of a prefix cache, at the most requests."""
    most = max(requests for _, requests in best)
    shares = {name: " and ".join(f"{turn.cached:.0%}" for turn in best[name, most]) for name, n in best if n == most}
    said = ", ".join(f"{name} {share}" for name, share in shares.items() if name != GENERATE)
    return f"Prompt tokens from the cache with {most} requests, first and second turn: {said}" if said else ""


def compare(options: argparse.Namespace, run: Sequence[str]) -> None:
    """Measure all contenders in turns, each by the command `run` with its name, and print their table."""
    names = list(CONTENDERS)
    if not Path(options.vllm).exists():
        print(f"{VLLM} is left out: there is no {options.vllm} (make vllm)\n", file=sys.stderr)
        names.remove(VLLM)
    best: dict[tuple[str, int], list[Turn]] = {}
    for repeat, name in product(range(options.repeats), names):
        print(f"{repeat + 1} of {options.repeats}: {name}", file=sys.stderr)
        done = subprocess.run([*run, "--contender", name], stdout=subprocess.PIPE, text=True, check=True)
        for requests, turns in json.loads(done.stdout.splitlines()[-1]).items():
            found = [Turn(*turn) for turn in turns]
            key = name, int(requests)
            best[key] = better(best.get(key, found), found)
    title = f"New tokens a second, {options.tokens} for each request, {options.dtype}, {os.cpu_count()} cores"
    print_table(decoding_table(best, options.tokens, title))
    print(cached_line(best))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="the in-process engine beside others")
    numbers = lambda text: tuple(map(int, text.split(",")))  # noqa: E731
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--requests", type=numbers, default=(1, 8, 24, 64), help="numbers of requests at once")
    parser.add_argument("--samples", type=int, default=8, help="requests that share a question's prompt")
    parser.add_argument("--tokens", type=int, default=24, help="new tokens of a request in each turn")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--vllm", default=".venv-vllm/bin/python", help="a Python interpreter that has vLLM")
    parser.add_argument("--contender", choices=CONTENDERS, help="measure this one alone, and print its turns as JSON")
    options = parser.parse_args(arguments)
    options.dtype = ModelConfig(path=options.model, dtype=options.dtype, device="cpu").dtype
    # Without resolving the link, which says whose packages it has.
    options.vllm = str(Path(options.vllm).absolute())
    if options.contender:
        logging.disable_progress_bar()
        print(json.dumps(asyncio.run(measure(options.contender, options))))
    else:
        compare(options, (sys.executable, "-m", "benchmarks.engine", *arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
