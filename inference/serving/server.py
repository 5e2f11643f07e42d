"""A vLLM server (its port, process and log, and whether it is ready), and the supervisor that runs a command beside
servers, restarts those that die, and stops everything in order.

The command survives a restart: the address stays the same, and the client waits (inference/http/connection.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ratchet.core.errors import UserError
from ratchet.core.http.clients import open_async_client
from ratchet.core.locks import disk_error
from ratchet.core.progress import duration
from ratchet.inference.serving import subreaper

POLL_SECONDS = 0.5
"""Seconds between two health checks of a server that is starting."""
REQUEST_TIMEOUT = 60.0
"""Seconds that a server may take to list its model."""
READY_TIMEOUT = 1800.0
"""Seconds until a server must answer: a large model from a network disk takes minutes."""
STOP_GRACE = 20.0
"""Seconds that a server may take to stop after SIGTERM; vLLM takes one to five."""
LOG_LINES = 15
"""Lines of a log that an error shows."""


class ServerFailure(Exception):
    """The server exited, or was not ready in time; the message says how, with the end of its log."""


def reserve_port() -> socket.socket:
    """Reserve a free loopback port for as long as the socket is open.

    The socket is bound and does not listen, so a server that sets SO_REUSEADDR (all do) can take the port, lose it when
    it dies, and take it again under the same address.
    """
    port_socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    port_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port_socket.bind(("127.0.0.1", 0))
    return port_socket


@dataclass
class Server:
    """One vLLM server process with its port and log."""

    title: str
    """The name of the server in messages, such as agent."""
    command: Sequence[str]
    environment: Mapping[str, str]
    """Variables added to this process's own; the key is in VLLM_API_KEY."""
    served_name: str
    log: Path
    port_socket: socket.socket
    """Holds the port, from `reserve_port`; its creator closes it."""
    ready_timeout: float = READY_TIMEOUT
    """Seconds from the start until the server must answer."""
    restarts: int = 3
    """The number of restarts that are left."""
    grace: float = STOP_GRACE
    process: asyncio.subprocess.Process | None = None

    @property
    def port(self) -> int:
        return int(self.port_socket.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def _key(self) -> str:
        return self.environment.get("VLLM_API_KEY", "")

    async def start(self) -> None:
        """Start the server and wait until it lists its model. Raises ServerFailure, UserError."""
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            file = self.log.open("ab")
        except OSError as error:
            raise disk_error(self.log, error) from error
        with file:
            file.write(f"\n== {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(self.command)}\n".encode())
            file.flush()
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", subreaper.__file__, str(os.getpid()), str(self.grace), *self.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        async with open_async_client(self._key, trust_env=False, timeout=REQUEST_TIMEOUT) as client:
            await self._wait_until_healthy(client)
            await self._check_served_model(client)

    async def _wait_until_healthy(self, client: httpx.AsyncClient) -> None:
        deadline = time.monotonic() + self.ready_timeout
        health = self.url.removesuffix("/v1") + "/health"
        while True:
            if self.process is None or self.process.returncode is not None:
                raise ServerFailure(self.exit_message())
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(health, timeout=5.0)).is_success:
                    return
            if time.monotonic() > deadline:
                await self.stop()
                raise ServerFailure(f"{self.title} was not ready within {self.ready_timeout:g} s; {self._log_tail()}")
            await asyncio.sleep(POLL_SECONDS)

    async def _check_served_model(self, client: httpx.AsyncClient) -> None:
        try:
            listed = (await client.get(f"{self.url}/models")).raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            raise ServerFailure(
                f"{self.title}: models: no answer ({error or type(error).__name__}); {self._log_tail()}"
            ) from None
        names = [model.get("id") for model in listed.get("data", [])]
        if self.served_name not in names:
            raise ServerFailure(f"{self.title} serves {names}, not {self.served_name!r}; {self._log_tail()}")

    async def stop(self) -> None:
        """Stop the server and wait until its last process has ended, which `subreaper` ensures."""
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()

    def exit_message(self) -> str:
        status = self.process.returncode if self.process else None
        return f"{self.title} ended with status {status}; {self._log_tail()}"

    def _log_tail(self) -> str:
        """Return the last lines of the log, after earlier errors in it: vLLM's last lines seldom name the cause."""
        try:
            lines = self.log.read_text(errors="replace").rpartition("\n== ")[2].splitlines()[1:]
        except OSError:
            return f"its log {self.log} cannot be read"
        if self._key:
            lines = [line.replace(self._key, "***") for line in lines]
        last = lines[-LOG_LINES:]
        errors = [line for line in lines[:-LOG_LINES] if re.search(r"\b[A-Z]\w*(Error|Exception): ", line)]
        shown = [*dict.fromkeys(errors[-3:]), *(["..."] if errors else []), *last]
        return f"its log {self.log} ends:\n" + "\n".join(f"  {line}" for line in shown or ["(nothing)"])


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
        """Run the command and return its exit status; without a command, servers run until a signal ends them, which
        gives 0.

        Raises UserError if a server does not become ready, ServingFailed if one dies too often.
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
                if server.process is not None:
                    await server.process.wait()
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
