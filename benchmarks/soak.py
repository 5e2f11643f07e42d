"""`ratchet serve` while clients ask different questions: its memory each minute, and how long clients waited.

    python -m benchmarks.soak --minutes 60 --clients 8 --cache-gb 0.3
    python -m benchmarks.soak --config configs/demo.yaml --minutes 2.5 --clients 64
    python -m benchmarks.soak --config configs/demo.yaml --minutes 1 --clients 1         one question after the other

The small model answers through the system `no_retrieval`, or a config's system answers the config's test questions.
Answers are streamed. The wait for the first step is reported as well, and the CPU time of the server, which other
programs on the machine change less than the waits. Memory grows until the cache of keys and values holds what it keeps
(at most `cache_gb`), which has to be in the first half of the time, and is flat from then on. The exit status is 1
where the second half of ten minutes or more adds more than 64 MiB, and where a client waited longer than 100 seconds
for an answer or a refusal.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx
import psutil  # type: ignore[import-untyped]
import yaml

from questions.load import load_questions
from ratchet.config import load_config
from ratchet.text import short_line

MODEL = Path("models/smollm2-135m-instruct")
MAX_GROWTH = 64 << 20
"""Bytes that the second half of the time may add."""
MAX_WAIT = 100.0
"""Seconds that a client may wait for an answer or a refusal."""
WORDS = ("harbour", "ferry", "tower", "engine", "river", "bridge", "island", "winter", "market", "letter")
"""Of the questions; a random number after each makes it unlike all others."""


def config(folder: Path, cache_gb: float) -> Path:
    model = {"path": str(MODEL.absolute()), "cache_gb": cache_gb}
    settings = {
        "run": str(folder / "run"),
        "models": {"agent": model},
        "system": {"name": "no_retrieval", "roles": {"default": {"max_tokens": 24}}},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def resident(pid: int) -> tuple[int, int]:
    """(resident, anonymous) bytes of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(number) * 1024 for name, number, _ in map(str.split, lines)}
    return sizes["Rss:"], sizes["Anonymous:"]


@dataclass
class Seen:
    """What all clients saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    waits: list[tuple[float, bool]] = field(default_factory=list)
    """Of every request: (its seconds, whether it was refused)."""
    first_steps: list[float] = field(default_factory=list)
    """Of every answer, the seconds until its first step."""

    def longest(self, refused: bool) -> float:
        return max((seconds for seconds, was_refused in self.waits if was_refused == refused), default=0.0)


def random_question(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) + str(rng.randrange(10**6)) for _ in range(60)) + ": which is it?"


def ask(client: httpx.Client, model: str, question: str, seen: Seen) -> httpx.Response:
    """Ask a question, and note how it ended."""
    messages = [{"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    began = time.monotonic()
    first_step: float | None = None
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if first_step is None and chunk.get("ratchet", {}).get("step"):
                first_step = time.monotonic() - began
            if usage := chunk.get("usage"):
                seen.tokens.update({"prompt": usage["prompt_tokens"], "new": usage["completion_tokens"]})
    seen.waits.append((time.monotonic() - began, response.status_code == 429))
    seen.statuses[str(response.status_code)] += 1
    if first_step is not None:
        seen.first_steps.append(first_step)
    return response


def ask_until(
    url: str, question: Callable[[random.Random], str], seed: int, deadline: float, pause: float, seen: Seen
) -> None:
    """Ask one question after another until the deadline."""
    rng = random.Random(seed)
    with open_client(url) as client:
        model = first_model(client)
        while time.monotonic() < deadline:
            response = ask(client, model, question(rng), seen)
            time.sleep(pause if response.is_success else float(response.headers.get("retry-after", 1)))


def open_client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=900, trust_env=False)


def first_model(client: httpx.Client) -> str:
    return str(client.get("/v1/models").json()["data"][0]["id"])


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0, help="seconds that a client waits after each answer")
    parser.add_argument("--cache-gb", type=float, default=0.3, help="of the small model, without --config")
    parser.add_argument("--config", help="serve this config, and ask its test questions")
    given = parser.parse_args()
    question = random_question
    if given.config:
        loaded = load_config(given.config)
        texts = [one.text for one in load_questions(loaded.questions.test, loaded.seed)]
        question = lambda rng: rng.choice(texts)  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        path = given.config or str(config(Path(folder), given.cache_gb))
        words = [sys.executable, "-m", "ratchet", "serve", "--config", path, "--port", "0"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
            try:
                return watch(server, question, given.minutes, given.clients, given.pause)
            finally:
                server.terminate()


def watch(
    server: subprocess.Popen[str],
    question: Callable[[random.Random], str],
    minutes: float,
    clients: int,
    pause: float,
) -> int:
    assert server.stderr is not None
    line = ""
    while not line.startswith("serving"):
        line = server.stderr.readline()
        if not line:
            return server.wait()
        print(short_line(line), flush=True)
    url = line.split()[-1]
    threading.Thread(target=server.stderr.read, daemon=True).start()
    cold, cpu = Seen(), cpu_seconds(server.pid)
    with open_client(url) as client:
        ask(client, first_model(client), question(random.Random(-1)), cold)
    print(f"the first question: {told_waits(cold, cpu_seconds(server.pid) - cpu)}", flush=True)
    seen, sizes, cpu = Seen(), list[int](), cpu_seconds(server.pid)
    started = time.monotonic()
    deadline = started + 60 * minutes
    threads = [
        threading.Thread(target=ask_until, args=(url, question, seed, deadline, pause, seen), daemon=True)
        for seed in range(clients)
    ]
    for thread in threads:
        thread.start()
    print(f"{'minute':>6} {'rss MB':>8} {'anon MB':>8} {'prompt':>9} {'new':>8}  statuses")
    while True:
        rss, anonymous = resident(server.pid)
        sizes.append(rss)
        told = " ".join(f"{status}:{number}" for status, number in sorted(seen.statuses.items()))
        memory = f"{rss / 1e6:>8.0f} {anonymous / 1e6:>8.0f}"
        tokens = f"{seen.tokens['prompt']:>9} {seen.tokens['new']:>8}"
        print(f"{(time.monotonic() - started) / 60:>6.1f} {memory} {tokens}  {told}", flush=True)
        if time.monotonic() >= deadline:
            break
        time.sleep(max(0.0, min(started + 60 * len(sizes), deadline) - time.monotonic()))
    for thread in threads:  # those that wait now have a wait as well
        thread.join(max(0.0, deadline + MAX_WAIT + 10 - time.monotonic()))
    without = sum(thread.is_alive() for thread in threads)
    print(told_waits(seen, cpu_seconds(server.pid) - cpu))
    answered, refused = seen.longest(refused=False), seen.longest(refused=True)
    print(
        f"{seen.statuses['200']} answers after {answered:.1f} s at most, {seen.statuses['429']} refusals after "
        f"{refused:.1f} s at most; clients without either within {MAX_WAIT:.0f} s: {without}"
    )
    growth = sizes[-1] - sizes[len(sizes) // 2]
    print(f"the second half of the time added {growth / 1e6:.0f} MB")
    return int(max(answered, refused) > MAX_WAIT or without > 0 or (minutes >= 10 and growth > MAX_GROWTH))


def told_waits(seen: Seen, cpu: float) -> str:
    """How long answers took, of which the server computed for `cpu` seconds."""
    answers = [seconds for seconds, was_refused in seen.waits if not was_refused]
    if not answers or not seen.first_steps:
        return "no answer"
    steps = f"first step after {median(seen.first_steps):.2f} s ({max(seen.first_steps):.2f} at most)"
    return f"{steps}, answer after {median(answers):.2f} s ({max(answers):.2f}), {cpu / len(answers):.2f} CPU s each"


if __name__ == "__main__":
    sys.exit(main())
