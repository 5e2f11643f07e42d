"""The tasks of one call on several threads, of which the caller's is one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_tasks(pool: Executor, threads: int, run: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
    """`run` of every task, in their order, on at most so many threads.

    The caller takes tasks as well. So it never waits for a thread of the pool to start, which on a busy machine takes
    longer than a short search.
    """
    waiting = deque(enumerate(tasks))
    results: dict[int, Result] = {}

    def take_tasks() -> None:
        while waiting:
            try:
                number, task = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            results[number] = run(task)

    helpers = [pool.submit(take_tasks) for _ in range(min(threads, len(tasks)) - 1)]
    take_tasks()
    for helper in helpers:
        if not helper.cancel():
            helper.result()
    return [results[number] for number in range(len(tasks))]
