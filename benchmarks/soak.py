"""Memory of `ratchet serve` while clients ask different questions without a pause, a line each minute.

    python -m benchmarks.soak --minutes 60 --clients 8 --cache-gb 0.3

The small model answers through the system `no_retrieval`. Memory grows until the cache of keys and values is full
(`cache_gb`), which has to be in the first half of the time, and is flat from then on: the exit status is 1 where the
second half adds more than 64 MiB.
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
from pathlib import Path

import httpx
import yaml

from ratchet.text import short_line

MODEL = Path("models/smollm2-135m-instruct")
MAX_GROWTH = 64 << 20
"""Bytes that the second half of the time may add."""
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


def ask(url: str, seed: int, deadline: float, statuses: Counter[str], tokens: Counter[str]) -> None:
    """Ask one question after another, each unlike all others, and count how they ended."""
    rng = random.Random(seed)
    with httpx.Client(base_url=url, timeout=900, trust_env=False) as client:
        while time.monotonic() < deadline:
            text = " ".join(rng.choice(WORDS) + str(rng.randrange(10**6)) for _ in range(60))
            message = {"role": "user", "content": f"{text}: which is it?"}
            answer = client.post("/v1/chat/completions", json={"model": "no_retrieval:base", "messages": [message]})
            statuses[str(answer.status_code)] += 1
            if answer.is_success:
                usage = answer.json()["usage"]
                tokens.update({"prompt": usage["prompt_tokens"], "new": usage["completion_tokens"]})
            else:
                time.sleep(float(answer.headers.get("retry-after", 1)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--cache-gb", type=float, default=0.3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "ratchet", "serve", "--config", str(config(Path(folder), given.cache_gb))]
        with subprocess.Popen([*words, "--port", "0"], stderr=subprocess.PIPE, text=True) as server:
            try:
                return watch(server, given.minutes, given.clients)
            finally:
                server.terminate()


def watch(server: subprocess.Popen[str], minutes: int, clients: int) -> int:
    assert server.stderr is not None
    line = ""
    while not line.startswith("serving"):
        line = server.stderr.readline()
        if not line:
            return server.wait()
        print(short_line(line), flush=True)
    url = line.split()[-1]
    threading.Thread(target=server.stderr.read, daemon=True).start()
    statuses, tokens, sizes = Counter[str](), Counter[str](), list[int]()
    started = time.monotonic()
    deadline = started + 60 * minutes
    threads = [
        threading.Thread(target=ask, args=(url, seed, deadline, statuses, tokens), daemon=True)
        for seed in range(clients)
    ]
    for thread in threads:
        thread.start()
    print(f"{'minute':>6} {'rss MB':>8} {'anon MB':>8} {'prompt':>9} {'new':>8}  statuses")
    for minute in range(minutes + 1):
        time.sleep(max(0.0, started + 60 * minute - time.monotonic()))
        rss, anonymous = resident(server.pid)
        sizes.append(rss)
        told = " ".join(f"{status}:{number}" for status, number in sorted(statuses.items()))
        print(
            f"{minute:>6} {rss / 1e6:>8.0f} {anonymous / 1e6:>8.0f} {tokens['prompt']:>9} {tokens['new']:>8}  {told}",
            flush=True,
        )
    growth = sizes[-1] - sizes[len(sizes) // 2]
    print(f"the second half of the time added {growth / 1e6:.0f} MB")
    return int(growth > MAX_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
