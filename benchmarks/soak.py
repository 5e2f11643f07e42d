"""`ratchet serve` while clients ask different questions: its memory each minute, and how long clients waited.

    python -m benchmarks.soak --minutes 60 --clients 8 --cache-gb 0.3
    python -m benchmarks.soak --config configs/demo.yaml --minutes 2.5 --clients 64

The small model answers through the system `no_retrieval`, or a config's system answers the config's test questions.
Memory grows until the cache of keys and values is full (`cache_gb`), which has to be in the first half of the time, and
is flat from then on. The exit status is 1 where the second half of ten minutes or more adds more than 64 MiB, and where
a client waited longer than 100 seconds for an answer or a refusal.
"""

from __future__ import annotations

import argparse
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

import httpx
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

    def longest(self, refused: bool) -> float:
        return max((seconds for seconds, was_refused in self.waits if was_refused == refused), default=0.0)


def random_question(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) + str(rng.randrange(10**6)) for _ in range(60)) + ": which is it?"


def ask(
    url: str, question: Callable[[random.Random], str], seed: int, deadline: float, pause: float, seen: Seen
) -> None:
    """Ask one question after another until the deadline, and note how they ended."""
    rng = random.Random(seed)
    with httpx.Client(base_url=url, timeout=900, trust_env=False) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        while time.monotonic() < deadline:
            message = {"role": "user", "content": question(rng)}
            began = time.monotonic()
            answer = client.post("/v1/chat/completions", json={"model": model, "messages": [message]})
            seen.waits.append((time.monotonic() - began, answer.status_code == 429))
            seen.statuses[str(answer.status_code)] += 1
            if answer.is_success:
                usage = answer.json()["usage"]
                seen.tokens.update({"prompt": usage["prompt_tokens"], "new": usage["completion_tokens"]})
                time.sleep(pause)
            else:
                time.sleep(float(answer.headers.get("retry-after", 1)))


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
    seen, sizes = Seen(), list[int]()
    started = time.monotonic()
    deadline = started + 60 * minutes
    threads = [
        threading.Thread(target=ask, args=(url, question, seed, deadline, pause, seen), daemon=True)
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
    answered, refused = seen.longest(refused=False), seen.longest(refused=True)
    print(
        f"{seen.statuses['200']} answers after {answered:.1f} s at most, {seen.statuses['429']} refusals after "
        f"{refused:.1f} s at most; clients without either within {MAX_WAIT:.0f} s: {without}"
    )
    growth = sizes[-1] - sizes[len(sizes) // 2]
    print(f"the second half of the time added {growth / 1e6:.0f} MB")
    return int(max(answered, refused) > MAX_WAIT or without > 0 or (minutes >= 10 and growth > MAX_GROWTH))


if __name__ == "__main__":
    sys.exit(main())
