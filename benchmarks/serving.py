"""How long a client of `python -m serve` waits for the first step and the answer, and what memory the server needs.

python benchmarks/serving.py --config configs/demo.yaml --questions 10
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import httpx

from questions.load import load_questions
from ratchet.config import load_config


def ask(url: str, model: str, text: str) -> tuple[float, float]:
    """Seconds to the first step, and to the end of the answer."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": True}
    started, first = time.perf_counter(), 0.0
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as response:
        for line in response.iter_lines():
            if line.startswith("data: ") and not first:
                first = time.perf_counter() - started
    return first, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--questions", type=int, default=10)
    parser.add_argument("more", nargs="*", help="arguments of the server, behind --")
    given = parser.parse_args()
    config = load_config(given.config)
    asked = [question.text for question in load_questions(config.questions.test, config.seed)[: given.questions]]
    command = [sys.executable, "-m", "serve", "--config", given.config, "--port", "0", *given.more]
    started = time.perf_counter()
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        line = server.stderr.readline()
        print(f"{line.strip()}: after {time.perf_counter() - started:.1f} s")
        model, url = line.split()[1].rstrip(","), line.split()[-1]
        times = [ask(url, model, text) for text in asked]
        status = Path(f"/proc/{server.pid}/status").read_text()
        memory = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert memory is not None
        result = {
            "model": model,
            "first step of the first question, s": round(times[0][0], 2),
            "first step, median of the others, s": round(median(first for first, _ in times[1:]), 2),
            "whole answer, median, s": round(median(whole for _, whole in times[1:]), 2),
            "most memory, GB": round(int(memory[1]) * 1024 / 1e9, 2),
        }
        print(json.dumps(result, indent=2))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
