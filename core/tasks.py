"""Running awaitables concurrently, blocking work where an event loop runs already, and work that is limited in time."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from ratchet.core.errors import UserError

T = TypeVar("T")


async def gather_or_cancel(work: Sequence[Awaitable[T]]) -> list[T]:
    """Run awaitables concurrently and return their results in order. The first error cancels the rest, and is raised
    after that."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def for_each(items: Sequence[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Do `work` for each item, begun in their order, `at_once` at a time. The first error cancels the rest."""
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    await gather_or_cancel([worker() for _ in range(min(at_once, len(items)))])


def run_or_cancel(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`. An interrupt is raised when all that ran has been cancelled, so the caller may close what it used.

    At the first Ctrl-C asyncio cancels its task by itself, but a second one breaks out of the loop, and so does SIGTERM
    where the shell has SIGINT ignored (`nohup`, or a script's `&`).
    """
    try:
        return runner.run(work)
    except KeyboardInterrupt:
        loop = runner.get_loop()
        running = asyncio.all_tasks(loop)
        for task in running:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*running, return_exceptions=True))
        raise


def run_outside_event_loop(work: Callable[[], T]) -> T:
    """Call `work`, which runs an event loop of its own, in a thread where one runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


class _TooSlow(BaseException):
    """No Exception: libraries catch those, and go on."""


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raise UserError in the middle of what takes longer. Only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TooSlow:
        raise UserError(message) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
