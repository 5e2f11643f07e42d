"""The proxies and certificates that the environment gives HTTP clients, where a mistake is one line that names the
variable; and whether the Hugging Face hub can be reached, for which its libraries try for a minute."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from ratchet.core.errors import UserError, first_line

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Those that a client reads, in capitals or not."""


def check_environment() -> None:
    """Raise UserError where no client can be made with the environment's proxies and certificates, before hours of
    work."""
    import httpx  # late: commands that open no client need none of it

    try:
        httpx.Client(verify=certificates()).close()
    except (httpx.InvalidURL, ValueError):
        # The address is not shown, which may hold a password.
        raise _unusable("the address of a proxy cannot be read") from None
    except ImportError as error:
        raise _unusable(first_line(error)) from None


@cache
def certificates() -> ssl.SSLContext:
    """Return the certificates that httpx trusts, and those of SSL_CERT_FILE and SSL_CERT_DIR, read once. Raises
    UserError."""
    import httpx  # late, as above

    try:
        return httpx.create_ssl_context()
    except OSError as error:
        raise _unusable(f"certificates cannot be read: {first_line(error)}") from None


def _unusable(reason: str) -> UserError:
    names = ", ".join(name for name in os.environ if name.upper() in VARIABLES and os.environ[name])
    return UserError(f"{names or 'the environment'}: {reason}; correct the environment, or unset the variable")


def is_address(text: str, schemes: Sequence[str]) -> bool:
    """Return whether a text is an absolute URL with one of these schemes and a host."""
    try:
        url = urlsplit(text)
        return url.scheme in schemes and bool(url.hostname) and url.port != 0 and text.split() == [text]
    except ValueError:  # of the port, or an open bracket
        return False


HUB = "https://huggingface.co"
SECONDS = 2
"""The longest that the hub may take to answer."""
SWITCHES = (("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("datasets.config", "HF_HUB_OFFLINE"))
"""Places of libraries that keep what they read from the environment as they were imported."""


def leave_unreachable_hub(name: str) -> None:
    """Have the hub's libraries look at downloaded files alone where the hub cannot be reached. `name` is a folder,
    which needs no hub, or a name on the hub. Raises UserError where the environment names no usable hub, proxy or
    certificates."""
    from urllib.request import getproxies  # late: commands that open no model need no HTTP client

    if Path(name).is_dir() or is_offline():
        return
    check_environment()
    if getproxies() or _is_reachable(_endpoint()):
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    for module, switch in SWITCHES:
        if module in sys.modules:
            setattr(sys.modules[module], switch, True)


def hub_reason(error: BaseException, name: str) -> str:
    """Say in one line why something of the hub could not be loaded."""
    if Path(name).is_dir() or _endpoint() not in _unreachable:
        return first_line(error)
    return (
        f"it is not on this machine, and the hub {_endpoint()} cannot be reached: give a local folder, or download it "
        "where there is a network"
    )


def is_offline() -> bool:
    """Return whether only downloaded files are looked at: by the user's choice, or since the hub does not answer."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


_unreachable: set[str] = set()


def _endpoint() -> str:
    endpoint = os.environ.get("HF_ENDPOINT", HUB)
    if not is_address(endpoint, ("http", "https")):
        raise UserError(f"HF_ENDPOINT: {endpoint!r} is not an address such as {HUB}: correct it, or unset it")
    return endpoint


@cache
def _is_reachable(endpoint: str) -> bool:
    hub, reached = urlsplit(endpoint), threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError):
            socket.create_connection((hub.hostname or "", hub.port or 443)).close()
            reached.set()

    looking = threading.Thread(target=connect, daemon=True)  # the name and each of its addresses may take long
    looking.start()
    looking.join(SECONDS)
    if not reached.is_set():
        _unreachable.add(endpoint)
    return reached.is_set()
