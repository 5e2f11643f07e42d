"""Starts servers, runs a command while they are up, restarts those that die, and stops everything in order.

The command survives a restart: the address stays the same, and the client waits (inference/http/connection.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratchet.core.errors import UserError
from ratchet.core.progress import duration
from ratchet.inference.serving.server import Server, ServerFailure


class ServingFailed(Exception):
    """A server died more often than its budget allows."""


def print_status(text: str) -> None:
    """Print a line on stderr: stdout belongs to the command."""
    print(f"serve: {text}", file=sys.stderr, flush=True)


class Supervisor:
    """The servers of one command, and the command itself."""

    def __init__(self, servers: Sequence[Server], devices: Mapping[str, Sequence[str]]) -> None:
        """`devices` maps a server's title to its devices; servers on one device start one after another."""
        self.servers = servers
        self._devices = devices
        self._device_locks = {device: asyncio.Lock() for on in devices.values() for device in on}
        self._signalled = asyncio.Event()
        self._signal = 0
        self._command: asyncio.subprocess.Process | None = None

    async def run(self, command: Sequence[str], environment: Mapping[str, str], ready: Callable[[], None]) -> int:
        """The command's exit status; without a command, servers run until a signal ends them in order, which gives 0.

        UserError if a server does not become ready, ServingFailed if one dies too often.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        ready_events = [asyncio.Event() for _ in self.servers]
        watches = [asyncio.create_task(self._watch(*pair)) for pair in zip(self.servers, ready_events, strict=True)]
        stop = asyncio.create_task(self._signalled.wait())
        all_up = asyncio.gather(*(event.wait() for event in ready_events))
        try:
            await self._wait_for_first([all_up, stop], watches)
            if stop.done():
                return 128 + self._signal
            ready()
            if command:
                return await self._run(command, environment, watches)
            await self._wait_for_first([stop], watches)
            return 0
        finally:
            tasks: list[asyncio.Future[Any]] = [*watches, stop, all_up]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(server.stop() for server in self.servers))
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _run(
        self, command: Sequence[str], environment: Mapping[str, str], watches: Sequence[asyncio.Task[None]]
    ) -> int:
        try:
            self._command = await asyncio.create_subprocess_exec(*command, env=dict(environment))
        except OSError as error:
            raise UserError(f"{command[0]}: cannot run ({error.strerror})") from error
        if self._signal:  # it came while the command was being started
            self._signal_command(signal.SIGTERM)
        done = asyncio.create_task(self._command.wait())
        try:
            await self._wait_for_first([done], watches)
        except (UserError, ServingFailed):
            print_status("a server cannot be restarted; stopping the command")
            self._signal_command(signal.SIGTERM)
            await done
            raise
        status = done.result()
        return status if status >= 0 else 128 - status

    async def _wait_for_first(
        self, waited: Sequence[asyncio.Future[Any]], watches: Sequence[asyncio.Task[None]]
    ) -> None:
        """Wait for one of `waited`. A watch ends only by raising an exception, which is raised here."""
        await asyncio.wait([*waited, *watches], return_when=asyncio.FIRST_COMPLETED)
        for watch in watches:
            if watch.done():
                watch.result()

    async def _watch(self, server: Server, ready_event: asyncio.Event) -> None:
        """Keep one server running, within its budget of restarts."""
        while True:
            began = time.monotonic()
            print_status(f"starting {server.title}; its log is {server.log}")
            try:
                async with contextlib.AsyncExitStack() as locks:
                    # In one order everywhere, so that no two servers wait for each other.
                    for device in sorted(self._devices[server.title]):
                        await locks.enter_async_context(self._device_locks[device])
                    await server.start()
            except ServerFailure as error:
                if not ready_event.is_set():  # what fails the first time would fail again
                    raise UserError(f"{error}") from None
                problem = str(error)
            else:
                print_status(f"{server.title} is ready at {server.url} after {duration(time.monotonic() - began)}")
                ready_event.set()
                await server.wait_until_exit()
                problem = server.exit_message()
            await server.stop()
            if server.restarts == 0:
                raise ServingFailed(f"{problem}\nno restart of {server.title} is left")
            server.restarts -= 1
            print_status(f"{problem}\nrestarting it, {server.restarts} restarts left")

    def _on_signal(self, number: int) -> None:
        """Stop the command first, in order; a second signal kills it."""
        again, self._signal = self._signal, number
        self._signalled.set()
        if again:
            self._signal_command(signal.SIGKILL)
        elif number == signal.SIGTERM or not _on_terminal():  # Ctrl-C reaches the command as well
            self._signal_command(number)

    def _signal_command(self, number: int) -> None:
        if self._command is not None:
            with contextlib.suppress(ProcessLookupError):
                self._command.send_signal(number)


def _on_terminal() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
