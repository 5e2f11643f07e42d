"""What keeping a judge's replies costs: a flush for each reply in the event loop against shared flushes in a thread.

    python benchmarks/judge_log.py [--calls 3000] [--in-flight 256] [--reply-ms 100] [--flush-ms 0] [--folder DIR]

Replies come from a scripted server after --reply-ms; both ways write the same records to a file in --folder, durably
before a reply is used. `--flush-ms` adds a wait to every flush, as on a network's disk. The stall is the longest time
for which the event loop answered nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.files import Segment
from ratchet.tasks import gather_or_cancel
from rewards.judge import CallLog, JudgeCall

if TYPE_CHECKING:
    from _typeshed import HasFileno


@dataclass(frozen=True)
class Measurement:
    calls_per_second: float
    stall: float
    """Seconds."""
    flushes: int


async def measure(calls: int, in_flight: int, reply: float, add: Callable[[JudgeCall], Awaitable[None]]) -> float:
    """The longest stall in seconds, while `calls` replies come and are kept."""
    numbers, stall, chance = iter(range(calls)), 0.0, random.Random(0)

    async def worker() -> None:
        for number in numbers:
            await asyncio.sleep(reply * chance.uniform(0.5, 1.5))
            await add(
                JudgeCall(owner=f"o{number // 60}", key=f"k{number}", text='{"score": 1}' * 20, finish_reason="stop")
            )

    async def watch() -> None:
        nonlocal stall
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.001)
            stall = max(stall, time.monotonic() - began - 0.001)

    watching = asyncio.create_task(watch())
    await gather_or_cancel([worker() for _ in range(in_flight)])
    watching.cancel()
    return stall


def run(way: str, options: argparse.Namespace, folder: Path) -> Measurement:
    flushes, fsync = 0, os.fsync

    def slow_fsync(fd: int | HasFileno) -> None:
        nonlocal flushes
        flushes += 1
        time.sleep(options.flush_ms / 1000)
        fsync(fd)

    os.fsync = slow_fsync
    began, reply = time.monotonic(), options.reply_ms / 1000
    try:
        if way == "one by one":
            with Segment(folder / "old.jsonl") as segment:

                async def append(call: JudgeCall) -> None:
                    segment.append(call)

                stall = asyncio.run(measure(options.calls, options.in_flight, reply, append))
        else:
            with CallLog(folder / "new.jsonl", set()) as log:
                stall = asyncio.run(measure(options.calls, options.in_flight, reply, log.add))
    finally:
        os.fsync = fsync
    return Measurement(options.calls / (time.monotonic() - began), stall, flushes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--reply-ms", type=float, default=100.0)
    parser.add_argument("--flush-ms", type=float, default=0.0)
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = {way: run(way, options, Path(folder)) for way in ("one by one", "shared")}
    old, new = found.values()
    print(f"{options.calls} replies, {options.in_flight} in flight, {options.reply_ms:g} ms each")
    print(f"{'':<12}{'calls/s':>10}{'stall ms':>10}{'flushes':>10}")
    for way, one in found.items():
        print(f"{way:<12}{one.calls_per_second:>10,.0f}{one.stall * 1000:>10,.1f}{one.flushes:>10,}")
    print(f"{'ratio':<12}{new.calls_per_second / old.calls_per_second:>10.2f}{new.stall / old.stall:>10.2f}")


if __name__ == "__main__":
    main()
