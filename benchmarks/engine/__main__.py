"""The in-process engine beside transformers' generate and vLLM's build for CPUs.

    python -m benchmarks.engine [--dtype bfloat16] [--requests 1,8,24,64] [--samples 8] [--tokens 24] [--repeats 2]

Each question is sampled several times, as in self-training. transformers gets all requests as one left-padded batch;
the engine and vLLM get single requests, the engine once with its default workers and once as one batch on all cores.
Every request makes exactly --tokens new tokens, so the work is the same and only its organisation differs. A second
turn then goes on from the first one's text. Each contender is a process of its own, which loads the model once; they
are measured in turns, --repeats times, with other prompts each time, and the best of each counts. vLLM is left out
where there is none (`make vllm`). It prints Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.engine.contenders import CONTENDERS, VLLM, Setting, Turn, answer_questions
from benchmarks.engine.table import better, cached_line, decoding_table
from ratchet.config import ModelConfig

COMMAND = (sys.executable, "-m", "benchmarks.engine")


class ContenderProcess:
    """The process of one contender."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        command = [*COMMAND, *arguments, "--contender", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        return line

    def turns(self, requests: int, salt: str) -> list[Turn]:
        assert self.process.stdin
        print(requests, salt, file=self.process.stdin, flush=True)
        return [Turn(*turn) for turn in json.loads(self.line())]

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def compare(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Measure all contenders in turns, and print their table."""
    counts, names = numbers(options.requests), options.contenders.split(",")
    if VLLM in names and not Path(options.vllm).exists():
        print(f"vLLM is left out: there is no {options.vllm} (make vllm)\n", file=sys.stderr)
        names.remove(VLLM)
    best: dict[tuple[str, int], list[Turn]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        processes = []
        for name in names:
            processes.append(ContenderProcess(name, [*arguments, "--log", str(Path(folder, "vllm.log"))]))
            started.callback(processes[-1].close)
        for process in processes:
            process.line()  # it is ready
        for repeat in range(options.repeats):
            for requests in counts:
                for process in processes:
                    turns = process.turns(requests, f"{repeat}-{requests}")
                    key = process.name, requests
                    best[key] = better(best.get(key, turns), turns)
                    rates = ", ".join(f"{requests * options.tokens / turn.seconds:.0f}" for turn in turns)
                    print(f"{process.name}, {requests} requests: {rates} new tokens/s", file=sys.stderr)
    print(f"\nNew tokens a second, {options.tokens} for each request, {options.dtype}, {os.cpu_count()} cores:\n")
    print(decoding_table(best, options.tokens))
    print(f"\n{cached_line(best)}")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="the in-process engine beside transformers' generate and vLLM")
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--requests", default="1,8,24,64", help="numbers of requests at once")
    parser.add_argument("--samples", type=int, default=8, help="requests that share a question's prompt")
    parser.add_argument("--tokens", type=int, default=24, help="new tokens of a request in each turn")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="which of them, by name")
    parser.add_argument("--vllm", default=".venv-vllm/bin/python", help="a Python interpreter that has vLLM")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--log", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.dtype = ModelConfig(path=options.model, dtype=options.dtype, device="cpu").dtype
    if options.contender:
        counts = numbers(options.requests)
        vllm = str(Path(options.vllm).absolute())
        common = (options.model, options.dtype, options.samples, options.tokens, counts, vllm, options.log)
        answer_questions(options.contender, Setting(*common))
    else:
        compare(options, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
