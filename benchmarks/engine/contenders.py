"""What the benchmark compares, each in a process of its own: generate, the in-process engine, and vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil  # type: ignore[import-untyped]
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from inference.chat import ChatFormat
from inference.completion import SamplingParams
from inference.http.engine import HttpEngine
from inference.http.protocol import token_completion, token_request
from inference.local.engine import LocalEngine
from inference.serving.server import Server, reserve_port
from inference.serving.specs import GB, Placement, ServerSpec, server_command, server_environment
from inference.tokenizer import load_tokenizer
from inference.wrappers import WrapperFormat
from ratchet.config import ModelConfig
from ratchet.config.models import ServeConfig

GENERATE, VLLM, ENGINE, ONE_BATCH = "generate", "vLLM", "engine", "one batch"
CONTENDERS = (GENERATE, VLLM, ENGINE, ONE_BATCH)
FILLER = "The ferry carries salt and lentils between the islands, and its crew of nine sings at every landing. "
ENDLESS = {"type": "string", "minLength": 100_000}
"""A schema that no completion can finish: every request stops at max_tokens."""
CONTEXT = 4096
TEMPERATURE, TOP_P = 0.7, 0.95


class Setting(NamedTuple):
    """What all contenders have in common."""

    model: str
    dtype: str
    samples: int
    """Of each question; they share its prompt."""
    tokens: int
    """New tokens of each request in a turn."""
    requests: tuple[int, ...]
    """The numbers of requests at once that are measured."""
    vllm: str
    """The Python interpreter that has vLLM."""
    log: str
    """The file of vLLM's output."""

    def config(self, workers: int | None = None) -> ModelConfig:
        return ModelConfig.model_validate(
            {"path": self.model, "dtype": self.dtype, "device": "cpu", "max_context": CONTEXT, "workers": workers}
        )


class Turn(NamedTuple):
    """One turn of all requests."""

    seconds: float
    cpu: float
    """CPU seconds of all threads and processes, which other work on the machine changes less."""
    cached: float
    """Share of the prompt tokens that came out of the prefix cache."""


class Contender(Protocol):
    """Something that completes prompts of token ids with `Setting.tokens` new ones each."""

    async def complete(self, prompts: Sequence[list[int]], tokens: int) -> tuple[list[list[int]], int]:
        """The new ids of every prompt, and the number of prompt tokens that came out of a cache."""
        ...

    async def close(self) -> None: ...


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

    def __init__(self, setting: Setting) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            setting.model, dtype=getattr(torch, setting.dtype), trust_remote_code=False
        )

    async def complete(self, prompts: Sequence[list[int]], tokens: int) -> tuple[list[list[int]], int]:
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

    def __init__(self, setting: Setting, workers: int | None) -> None:
        self.engine = LocalEngine(setting.config(workers))

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

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.port = reserve_port()
        key = secrets.token_hex(16)
        config = setting.config().model_copy(update={"engine": "vllm", "send_seed": False})
        os.environ[config.api_key_env] = key
        most = max(setting.requests)
        # Blocks of 128 tokens, its default on a CPU, share little of short prompts; 32 is the least of its fast kernel.
        settings = ServeConfig(python=setting.vllm, arguments={"block-size": 32})
        spec, placement = ServerSpec(("vllm",), config, settings), Placement(kv_bytes=2 * GB, concurrency=most)
        # By default vLLM leaves one core to its other processes, which have little to do here.
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", cores)
        self.server = Server(
            title="vLLM",
            command=server_command(spec, placement, self.port.getsockname()[1]),
            environment=server_environment(spec, placement) | {"VLLM_API_KEY": key, "VLLM_CPU_OMP_THREADS_BIND": bound},
            served_name=spec.served_name,
            log=Path(setting.log),
            port_socket=self.port,
            ready_timeout=400.0,
            restarts=0,
        )
        self.engine = HttpEngine(config.model_copy(update={"url": self.server.url, "concurrency": most}))

    async def complete(self, prompts: Sequence[list[int]], tokens: int) -> tuple[list[list[int]], int]:
        params = SamplingParams(TEMPERATURE, TOP_P, tokens)
        chat, name = self.engine.format, self.server.served_name

        async def ask(row: list[int]) -> tuple[list[int], int]:
            body = token_request(name, row, params, tokens, chat, send_seed=False)
            body |= {"stop_token_ids": [], "ignore_eos": True}
            answer = await self.engine.connection.json("POST", "completions", body)
            completion = token_completion(answer, row, params, chat)
            return list(completion.ids), completion.cached_tokens

        made = await asyncio.gather(*map(ask, prompts))
        return [ids for ids, _ in made], sum(cached for _, cached in made)

    async def close(self) -> None:
        await self.engine.close()
        await self.server.stop()
        self.port.close()


async def start(name: str, setting: Setting) -> Contender:
    """The contender with its model loaded. ServerFailure where vLLM does not start."""
    if name == GENERATE:
        return Generate(setting)
    if name == VLLM:
        vllm = Vllm(setting)
        await vllm.server.start()
        return vllm
    return Local(setting, 1 if name == ONE_BATCH else None)


def cpu_seconds() -> float:
    """CPU time of this process and those that it started, which still run."""
    own = psutil.Process()
    times = [one.cpu_times() for one in (own, *own.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


async def two_turns(
    contender: Contender, chat: ChatFormat, setting: Setting, requests: int, tokens: int, salt: str
) -> list[Turn]:
    """Time a turn of questions, and one that goes on from its text."""
    clock = asyncio.get_running_loop().time
    prompts, found = question_prompts(chat, requests, setting.samples, salt), []
    for _ in range(2):
        began, used = clock(), cpu_seconds()
        made, cached = await contender.complete(prompts, tokens)
        found.append(Turn(clock() - began, cpu_seconds() - used, cached / sum(map(len, prompts))))
        if any(len(ids) != tokens for ids in made):
            raise AssertionError(f"not {tokens} new tokens for each request: {[len(ids) for ids in made]}")
        prompts = [[*row, *ids, *chat.encode("\nGo on.")] for row, ids in zip(prompts, made, strict=True)]
    return found


def answer_questions(name: str, setting: Setting) -> None:
    """The process of one contender: a line when it is ready, then for each line `requests salt` one with the turns."""
    logging.disable_progress_bar()
    chat = WrapperFormat.from_tokenizer(load_tokenizer(setting.model, None), setting.model)
    with asyncio.Runner() as runner:
        contender = runner.run(start(name, setting))
        try:
            runner.run(two_turns(contender, chat, setting, 2, 4, "to compile what is compiled at first use"))
            print("ready", flush=True)
            for line in sys.stdin:
                requests, salt = line.split()
                # Some machines take memory from processes that wait, and this one has waited for the others.
                runner.run(two_turns(contender, chat, setting, 2, 4, f"before {salt}"))
                turns = runner.run(two_turns(contender, chat, setting, int(requests), setting.tokens, salt))
                print(json.dumps(turns), flush=True)
        finally:
            runner.run(contender.close())
