"""The tasks of one call on several threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratchet.retrieval.sparse.engine import run_tasks


def test_results_are_in_the_order_of_tasks_and_an_error_of_any_is_raised() -> None:
    with ThreadPoolExecutor(3) as pool:
        assert run_tasks(pool, 3, lambda n: n * n, range(100)) == [n * n for n in range(100)]
        assert run_tasks(pool, 3, lambda n: n, []) == []
        with pytest.raises(ZeroDivisionError):
            run_tasks(pool, 3, lambda n: 1 // (n - 50), range(100))


def test_threads_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=300)
    with ThreadPoolExecutor(1) as pool:
        assert sorted(run_tasks(pool, 2, lambda n: both.wait(), range(2))) == [0, 1]


def test_a_call_does_not_wait_for_a_thread_that_is_busy() -> None:
    """On a busy machine a thread that starts late would hold up a search that takes microseconds."""
    free = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(free.wait)
        try:
            assert run_tasks(pool, 2, lambda n: n, range(4)) == [0, 1, 2, 3]
        finally:
            free.set()
