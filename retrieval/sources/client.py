"""The HTTP client of all search services: with rate limits, retries and limits on answers.

A request is sent again, after growing waits, where that may help: 429 and 5xx (their Retry-After is kept to), a success
that says it is none now, no complete answer in time, a broken connection. All else is a SourceError at once. Redirects
are not followed: a key never goes to another host. Keys are in no message, log line, cache file or digest.

`ResponseCache` keeps responses on disk, one JSON file a request: the same request gets the same response, which makes a
run repeatable.

The file's name is a digest of service, address and request, without key or contact. Nothing expires: a run that is to
see today's web has a folder of its own. A damaged file counts as none (replay says which one it is).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import httpx

from ratchet.core.files import read_json_file, write_json
from ratchet.core.http.clients import Answer, BadResponse, TooLarge, is_local, open_async_client, send_request
from ratchet.core.http.retry import TRANSIENT, Backoff, read_retry_after
from ratchet.core.records import content_key
from ratchet.core.text import short_line
from ratchet.retrieval.retriever import SourceError

MAX_BYTES = 8 << 20
"""The limit of one response, unpacked."""
TIMEOUT = 30.0
"""Seconds of one try, to its last byte."""
DEADLINE = 180.0
"""Seconds of all tries of a request and the waits between them."""
BACKOFF = Backoff(tries=5, longest=60.0)
LATER = "run the same command again later, or set mode: replay or local"

logger = logging.getLogger(__name__)
# httpx logs every address at level INFO, and some services take their key as a parameter of the address.
logging.getLogger("httpx").addFilter(lambda record: "api_key=" not in record.getMessage())


class Busy(SourceError):
    """A successful response says that there is no answer now."""


@dataclass(frozen=True)
class Request:
    """A request without key or contact: equal requests have equal responses."""

    method: Literal["GET", "POST"]
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Access:
    """Credentials and contact that are added to every request and stored nowhere."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    params: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret: str = field(default="", repr=False)
    """The key, to be struck from a service's own words."""
    refused: str = ""
    """Advice for 401 and 403."""


class Pace:
    """When the next request to each host may start: shared by the whole process, whatever thread or loop asks."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        self._lock = threading.Lock()

    def turn(self, host: str, interval: float) -> float:
        """Seconds to wait; the turn is taken."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next.get(host, 0.0))
            self._next[host] = start + interval
            return start - now

    def hold(self, host: str, seconds: float) -> None:
        """No new turn before so many seconds have passed."""
        with self._lock:
            self._next[host] = max(self._next.get(host, 0.0), time.monotonic() + seconds)


PACE = Pace()


class WebClient:
    """Sends the requests of one service, and repeats those that failed for a passing reason."""

    def __init__(
        self,
        service: str,
        url: str,
        access: Access,
        per_second: float,
    ) -> None:
        self.url = url.rstrip("/")
        self._service, self._access, self._interval = service, access, 1 / per_second
        self._host = httpx.URL(url).netloc.decode()
        self._open: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    async def fetch(self, request: Request, check: Callable[[str], object]) -> str:
        """Return the body of a successful response. Raises SourceError. `check` raises Busy for one to be asked for
        again."""
        failed, spent = 0, 0.0
        while True:
            await asyncio.sleep(PACE.turn(self._host, self._interval))
            began, asked = time.monotonic(), None
            try:
                async with asyncio.timeout(TIMEOUT):
                    answer = await self._send(request)
            except TimeoutError:
                problem = f"{self._service} gave no complete answer within {TIMEOUT:g} s"
            except TooLarge as error:
                raise SourceError(f"{self._service}: {error}") from None
            except (httpx.TransportError, BadResponse) as error:
                message = self._server_words(str(error)) or type(error).__name__
                problem = f"{self._service}: cannot reach {self.url} ({message})"
            else:
                said = answer.busy
                if answer.is_success and not said:
                    try:
                        check(answer.text)
                        return answer.text
                    except Busy as busy:
                        said = str(busy)
                words = self._server_words(said or answer.text) or "(nothing)"
                problem = f"{self._service} answered {answer.status}: {words}"
                if not said and answer.status not in TRANSIENT:
                    raise SourceError(f"{problem}; {self._advice(answer)}")
                asked = read_retry_after(answer.headers)
            failed += 1
            wait = BACKOFF.wait(failed, asked)
            spent += time.monotonic() - began + wait
            if asked is not None and asked > BACKOFF.longest:
                raise SourceError(f"{problem}; it asks to wait for {asked:.0f} s: {LATER}")
            if asked:
                PACE.hold(self._host, asked)
            if failed >= BACKOFF.tries or spent > DEADLINE:
                raise SourceError(f"{problem} (after {failed} tries); {LATER}")
            logger.info("%s; try %d of %d in %.1f s", problem, failed + 1, BACKOFF.tries, wait)
            await asyncio.sleep(wait)

    async def close(self) -> None:
        if self._open and self._open[0] is asyncio.get_running_loop():
            await self._open[1].aclose()
        self._open = None

    async def _send(self, request: Request) -> Answer:
        client = self._client()
        params = {**request.params, **self._access.params} or None
        sent = client.build_request(request.method, self.url + request.path, params=params, json=request.body)
        return await send_request(client, sent, MAX_BYTES)

    def _client(self) -> httpx.AsyncClient:
        """Return the client of this event loop, which a source may outlive."""
        loop = asyncio.get_running_loop()
        if self._open is None or self._open[0] is not loop:
            headers, proxies = dict(self._access.headers), not is_local(self.url)
            self._open = (loop, open_async_client(headers=headers, timeout=None, trust_env=proxies))
        return self._open[1]

    def _server_words(self, text: str) -> str:
        """Return a service's message in a short line, without the key, which some services repeat."""
        if self._access.secret:
            text = text.replace(self._access.secret, "***")
        return short_line(text)

    def _advice(self, answer: Answer) -> str:
        if 300 <= answer.status < 400:
            place = self._server_words(answer.headers.get("location", "?"))
            return f"it sends us on to {place}, which is not followed; set mode: replay or local"
        if answer.status in (401, 403) and self._access.refused:
            return self._access.refused
        return "the request itself is refused, so that it is not sent again"


Mode = Literal["live", "replay"]
"""live: from the disk, else fetched and stored. replay: from the disk."""


class ResponseCache:
    """Stores every response, and returns it for an equal request."""

    def __init__(self, folder: Path, mode: Mode) -> None:
        self._folder, self._mode = folder, mode
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, service: str, request: dict[str, Any], query: str, fetch: Callable[[], Awaitable[str]]) -> str:
        """Return the response's text. Of equal requests at once, one is sent and the others wait for it. Raises
        SourceError."""
        key = content_key(service, request)
        path = self._folder / service / f"{key}.json"
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            stored = await asyncio.to_thread(_read, path, request)
            if stored is not None:
                return stored
            if self._mode == "replay":
                what = "is damaged" if path.exists() else "is not there"
                raise SourceError(
                    f"{service}: mode: replay has no stored answer for {query!r} ({path} {what}); mode: live would "
                    "fetch and store it"
                )
            text = await fetch()
            entry = {"request": request, "fetched": datetime.now(UTC).isoformat(timespec="seconds"), "response": text}
            await asyncio.to_thread(write_json, path, entry)
            return text


def _read(path: Path, request: dict[str, Any]) -> str | None:
    try:
        entry = read_json_file(path)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("request") != request:
        return None
    text = entry.get("response")
    return text if isinstance(text, str) else None
