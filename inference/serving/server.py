"""One vLLM server: its port, its process, its log, and whether it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from inference.adapters import load_request
from inference.engine import EngineError
from inference.http.adapter_check import check_adapter
from inference.serving import keeper
from ratchet.files import disk_error

POLL = 0.5
"""Seconds between two looks at a server that is starting."""
ANSWER = 300.0
"""Seconds that a server may take to load an adapter or answer a few tokens."""
GRACE = 20.0
"""Seconds that a server may take to stop in order; vLLM takes one to five."""
TAIL = 15
"""Lines of a log that an error shows."""


class Died(Exception):
    """The server ended, or did not come up in time; the message says how, with the end of its log."""


def reserve_port() -> socket.socket:
    """A free loopback port, kept from everyone else for as long as the socket is open.

    The socket is bound and does not listen, so a server that sets SO_REUSEADDR (all do) can take the port, lose it when
    it dies, and take it again under the same address.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


@dataclass
class Server:
    title: str
    """Such as agent-1."""
    command: Sequence[str]
    environment: Mapping[str, str]
    """Added to ours; the key is in VLLM_API_KEY."""
    served_name: str
    log: Path
    held: socket.socket
    """Its port, from reserve_port; whoever made it closes it."""
    ready_timeout: float
    restarts: int
    """How many are left."""
    adapters: Sequence[str] = ()
    grace: float = GRACE
    process: asyncio.subprocess.Process | None = None

    @property
    def port(self) -> int:
        return int(self.held.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def _key(self) -> str:
        return self.environment.get("VLLM_API_KEY", "")

    async def start(self) -> None:
        """Start it and wait until it answers, lists its model, and has its adapters. Raises Died and UserError."""
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            file = self.log.open("ab")
        except OSError as error:
            raise disk_error(self.log, error) from error
        with file:
            file.write(f"\n== {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(self.command)}\n".encode())
            file.flush()
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", keeper.__file__, str(os.getpid()), str(self.grace), *self.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        async with httpx.AsyncClient(headers=headers, timeout=ANSWER, trust_env=False) as client:
            await self._answering(client)
            await self._meet(client)
            for folder in self.adapters:
                await self._load(client, folder)

    async def _answering(self, client: httpx.AsyncClient) -> None:
        deadline = time.monotonic() + self.ready_timeout
        health = self.url.removesuffix("/v1") + "/health"
        while True:
            if self.process is None or self.process.returncode is not None:
                raise Died(self.obituary())
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(health, timeout=5.0)).is_success:
                    return
            if time.monotonic() > deadline:
                await self.stop()
                raise Died(
                    f"{self.title} was not ready within {self.ready_timeout:g} s (serve.ready_timeout); {self._said()}"
                )
            await asyncio.sleep(POLL)

    async def _meet(self, client: httpx.AsyncClient) -> None:
        listed = await self._ask(client, "models", None)
        names = [model.get("id") for model in listed.get("data", [])]
        if self.served_name not in names:
            raise Died(f"{self.title} serves {names}, not {self.served_name!r}; {self._said()}")

    async def _load(self, client: httpx.AsyncClient, folder: str) -> None:
        body = load_request(folder)
        await self._ask(client, "load_lora_adapter", body)

        async def ask(path: str, body: dict[str, Any] | None) -> Any:
            return await self._ask(client, path, body)

        try:
            await check_adapter(folder, body["lora_name"], self.served_name, ask)
        except EngineError as error:
            raise Died(f"{self.title}: {folder}: {error}; {self._said()}") from None

    async def _ask(self, client: httpx.AsyncClient, path: str, body: dict[str, Any] | None) -> Any:
        try:
            response = await client.request("POST" if body else "GET", f"{self.url}/{path}", json=body)
        except httpx.TransportError as error:
            raise Died(f"{self.title}: {path}: no answer ({error or type(error).__name__}); {self._said()}") from None
        if not response.is_success:
            raise Died(f"{self.title}: {path}: {response.status_code} {response.text[:300]}; {self._said()}")
        # Loading an adapter answers with a sentence.
        return response.json() if "json" in response.headers.get("content-type", "") else response.text

    async def ended(self) -> None:
        if self.process is not None:
            await self.process.wait()

    async def stop(self) -> None:
        """Ask it to stop, and wait for the end of its last process: the keeper sees to it that there is one."""
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()

    def obituary(self) -> str:
        status = self.process.returncode if self.process else None
        return f"{self.title} ended with status {status}; {self._said()}"

    def _said(self) -> str:
        """The end of its log, and before that the errors that the log names: vLLM's last words are seldom the cause."""
        try:
            lines = self.log.read_text(errors="replace").rpartition("\n== ")[2].splitlines()[1:]
        except OSError:
            return f"its log {self.log} cannot be read"
        if self._key:
            lines = [line.replace(self._key, "***") for line in lines]
        last = lines[-TAIL:]
        errors = [line for line in lines[:-TAIL] if re.search(r"\b[A-Z]\w*(Error|Exception): ", line)]
        shown = [*dict.fromkeys(errors[-3:]), *(["..."] if errors else []), *last]
        return f"its log {self.log} ends:\n" + "\n".join(f"  {line}" for line in shown or ["(nothing)"])
