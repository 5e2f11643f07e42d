"""httpx clients that send our requests, and answers read up to a limit: whatever a server sends becomes bytes or one of
two errors. httpx would unpack a body of any size, and raises errors of many families."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from ratchet.core.http.environment import certificates, check_environment
from ratchet.core.http.retry import TRANSIENT
from ratchet.core.text import read_json, short_line


def open_client(
    key: str = "", headers: Mapping[str, str] | None = None, trust_env: bool = True, **settings: Any
) -> httpx.Client:
    """Open a client whose answers `send_request_sync` reads. `key` is sent as a bearer token unless it is empty.
    Without `trust_env` the environment's proxies do not count, as for a server on this machine. `settings` are
    httpx's."""
    return httpx.Client(**_settings(key, headers, trust_env), **settings)


def open_async_client(
    key: str = "", headers: Mapping[str, str] | None = None, trust_env: bool = True, **settings: Any
) -> httpx.AsyncClient:
    """`open_client` for an event loop, and for `send_request`."""
    return httpx.AsyncClient(**_settings(key, headers, trust_env), **settings)


def _settings(key: str, headers: Mapping[str, str] | None, trust_env: bool) -> dict[str, Any]:
    if trust_env:
        check_environment()
    bearer = {"Authorization": f"Bearer {key}"} if key else {}
    return {
        # core/http/clients.py unpacks nothing else.
        "headers": {"Accept-Encoding": "gzip"} | bearer | dict(headers or {}),
        "cookies": no_cookies(),
        "trust_env": trust_env,
        "verify": certificates(),
    }


def no_cookies() -> CookieJar:
    """Return a jar that keeps none: a server's odd cookie would spoil every request after it."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


def is_local(url: str) -> bool:
    """Return whether the URL is of this machine, by one of its names for itself."""
    return httpx.URL(url).host in ("127.0.0.1", "localhost", "::1")


DISCONNECTED = ("disconnected", "closed connection")
"""Words of httpx and h11 for a connection that ended early; all else that they call a protocol error did arrive."""

PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype\s+)?html\b", re.I)
"""The beginning of a web page, whatever type its header says."""
SMALL = 4096
"""Bytes: an error object has fewer."""


class BadResponse(Exception):
    """An answer that cannot be used: damaged, too large, or against the protocol."""


class TooLarge(BadResponse):
    """Larger than its reader allows."""


@dataclass(frozen=True)
class Answer:
    """A server's answer with its body unpacked."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    @property
    def busy(self) -> str:
        """Why a success is none, and may be one on the next try, else "": a proxy or a busy service answers 200 or 202
        with nothing, a web page, or an error object with a transient status."""
        if not self.is_success:
            return ""
        if not self.body or self.body.isspace():
            return "(nothing)"
        if PAGE.match(self.body[:SMALL]):
            return "a web page, of a proxy or of a service that is too busy"
        if len(self.body) > SMALL or b"error" not in self.body:
            return ""
        try:
            answer = read_json(self.body)
        except ValueError:
            return ""
        error = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(error, dict) or str(error.get("code")) not in map(str, TRANSIENT):
            return ""
        return short_line(f"{error['code']}: {error.get('message')}")


async def send_request(client: httpx.AsyncClient, request: httpx.Request, max_bytes: int) -> Answer:
    """Send a request and read at most `max_bytes` of its answer, unpacked.

    Raises httpx.TransportError where the connection fails, and BadResponse.
    """
    try:
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            body = _Body(response, max_bytes)
            async for part in response.aiter_raw():
                if not body.takes(part):
                    break
        finally:
            await response.aclose()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise _as_caller_error(error) from None
    return body.answer()


def send_request_sync(client: httpx.Client, request: httpx.Request, max_bytes: int) -> Answer:
    """`send_request` for clients without an event loop."""
    try:
        response = client.send(request, stream=True, follow_redirects=False)
        try:
            body = _Body(response, max_bytes)
            for part in response.iter_raw():
                if not body.takes(part):
                    break
        finally:
            response.close()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise _as_caller_error(error) from None
    return body.answer()


def _as_caller_error(error: Exception) -> Exception:
    broke = not isinstance(error, httpx.ProtocolError) or any(words in str(error) for words in DISCONNECTED)
    if isinstance(error, httpx.TransportError) and broke:
        return error
    return BadResponse(f"the answer cannot be read ({str(error) or type(error).__name__})")


class _Body:
    """A body while it arrives."""

    def __init__(self, response: httpx.Response, max_bytes: int) -> None:
        self._response, self._max_bytes, self._raw = response, max_bytes, bytearray()

    def takes(self, part: bytes) -> bool:
        self._raw += part
        return len(self._raw) <= self._max_bytes

    def answer(self) -> Answer:
        status = self._response.status_code
        try:
            body = self._unpacked()
        except BadResponse as error:
            if 200 <= status < 300:
                raise
            body = str(error).encode()  # an error's status says enough
        return Answer(status, self._response.headers, body)

    def _unpacked(self) -> bytes:
        body, packing = bytes(self._raw), self._response.headers.get("content-encoding", "identity").strip().lower()
        if packing in ("gzip", "x-gzip") and 0 < len(body) <= self._max_bytes:
            reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                body = reader.decompress(body, self._max_bytes + 1)
            except zlib.error as error:
                raise BadResponse(f"the answer is no valid gzip data ({error})") from None
            if len(body) <= self._max_bytes and not reader.eof:
                raise BadResponse("the answer's gzip data is cut off")
        elif packing not in ("identity", "gzip", "x-gzip"):
            raise BadResponse(f"the answer is packed as {packing[:50]!r}, which was not asked for")
        if len(body) > self._max_bytes:
            raise TooLarge(f"an answer of more than {self._max_bytes / (1 << 20):g} MiB is not read")
        return body
