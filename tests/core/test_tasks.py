"""What is still running when a command is stopped ends before the files that it writes are closed."""

import asyncio
import contextlib
import signal

import pytest

from ratchet.core.tasks import gather_or_cancel, run_or_cancel


def test_an_interrupt_out_of_the_loop_is_raised_when_all_tasks_have_ended() -> None:
    """As a second Ctrl-C is, or SIGTERM under nohup."""
    is_open = True
    ended: list[int] = []
    written_late: list[int] = []

    async def worker(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            (ended if is_open else written_late).append(number)

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.01, signal.default_int_handler, signal.SIGINT, None)
        await gather_or_cancel([worker(number) for number in range(3)])

    with contextlib.closing(asyncio.Runner()) as runner:
        with pytest.raises(KeyboardInterrupt):
            run_or_cancel(runner, work())
        is_open = False
    assert sorted(ended) == [0, 1, 2] and not written_late
