"""Running awaitables concurrently, and blocking work where an event loop runs already."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def gather_or_cancel(work: Sequence[Awaitable[T]]) -> list[T]:
    """Run awaitables concurrently: results in order. The first error cancels the rest, and is raised after that."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_outside_event_loop(work: Callable[[], T]) -> T:
    """Call `work`, which runs an event loop of its own, in a thread where one runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()
