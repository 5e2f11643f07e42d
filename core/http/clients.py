"""httpx clients that send our requests: no cookies, no compression but gzip, and certificates that are read once."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from ratchet.core.errors import UserError
from ratchet.core.http.environment import check_certificates, check_environment


def open_client(
    key: str = "", headers: Mapping[str, str] | None = None, trust_env: bool = True, **settings: Any
) -> httpx.Client:
    """A client whose answers `send_request_sync` reads (core/http/responses.py).

    `key` is sent as a bearer token unless it is empty. `trust_env`: whether the environment's proxies count; not for a
    server on this machine, which a proxy for the world outside cannot reach. `settings` are httpx's.
    """
    return httpx.Client(**_settings(key, headers, trust_env), **settings)


def open_async_client(
    key: str = "", headers: Mapping[str, str] | None = None, trust_env: bool = True, **settings: Any
) -> httpx.AsyncClient:
    """`open_client` for an event loop, and for `send_request`."""
    return httpx.AsyncClient(**_settings(key, headers, trust_env), **settings)


def _settings(key: str, headers: Mapping[str, str] | None, trust_env: bool) -> dict[str, Any]:
    if trust_env:
        check_client_environment()
    bearer = {"Authorization": f"Bearer {key}"} if key else {}
    return {
        # core/http/responses.py unpacks nothing else.
        "headers": {"Accept-Encoding": "gzip"} | bearer | dict(headers or {}),
        "cookies": no_cookies(),
        "trust_env": trust_env,
        "verify": certificates(),
    }


def check_client_environment() -> None:
    """`check_environment`, and NO_PROXY, in which httpx takes no range of IPv6 addresses. For what will open a client
    much later than it begins to work."""
    check_environment()
    try:
        httpx.Client(verify=certificates()).close()
    except httpx.InvalidURL as error:
        name = "no_proxy" if os.environ.get("no_proxy") else "NO_PROXY"
        raise UserError(
            f"{name}: the HTTP client cannot read an entry of {os.environ.get(name, '')!r} ({error}); write names and "
            f"addresses without brackets and IPv6 ranges, such as {name}=localhost,127.0.0.1,::1"
        ) from None


@cache
def certificates() -> ssl.SSLContext:
    """What httpx trusts, and SSL_CERT_FILE and SSL_CERT_DIR. A client without it reads the same, in 20 ms of a core.

    Raises UserError where these name nothing that can be read.
    """
    check_certificates()
    return httpx.create_ssl_context()


def no_cookies() -> CookieJar:
    """A server's odd cookie would otherwise spoil every request after it."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


def is_local(url: str) -> bool:
    """Whether the URL is of this machine, by one of its names for itself."""
    return httpx.URL(url).host in ("127.0.0.1", "localhost", "::1")
