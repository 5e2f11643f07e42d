"""What the environment tells HTTP clients (proxies, certificates), where a mistake is one line that names the variable;
and whether the Hugging Face hub can be reached, for which its libraries try for a minute.

httpx and the hub's client read the variables when a client is made, which may be long after a run began, and their
errors name none of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from ratchet.core.errors import UserError, first_line

PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")
"""That httpx knows."""


def check_environment() -> None:
    """Raises UserError where a client cannot use the proxies or the certificates that the environment names."""
    from urllib.request import getproxies  # late: commands that open no client need none of it

    proxies = getproxies()
    for scheme in ("http", "https", "all"):
        if proxies.get(scheme):
            _check_proxy(_variable(scheme), proxies[scheme])
    check_certificates()


def check_certificates() -> None:
    """Raises UserError where SSL_CERT_FILE or SSL_CERT_DIR names nothing that can be read."""
    import ssl  # late, as above

    if file := os.environ.get("SSL_CERT_FILE"):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
        except OSError as error:
            reason = "there is no certificate in it" if isinstance(error, ssl.SSLError) else error.strerror
            wanted = "name a file of certificates in PEM format, or unset it"
            raise UserError(f"SSL_CERT_FILE: {file}: {reason}; {wanted}") from None
        return
    folders = os.environ.get("SSL_CERT_DIR")
    if folders and not any(Path(folder).is_dir() for folder in folders.split(os.pathsep)):
        raise UserError(f"SSL_CERT_DIR: {folders}: no such folder; name one of certificates, or unset it")


def _variable(scheme: str) -> str:
    """The variable that names the proxy for a scheme, as it is spelt in the environment."""
    names = (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")
    return next((name for name in names if os.environ.get(name)), f"the system's proxy for {scheme}")


def _check_proxy(name: str, address: str) -> None:
    """The address itself is not shown, which may hold a password."""
    address = address if "://" in address else f"http://{address}"
    if not is_address(address, PROXY_SCHEMES):
        known = ", ".join(f"{scheme}://" for scheme in PROXY_SCHEMES)
        raise UserError(
            f"{name}: this is not the address of a proxy, such as http://proxy.example.org:3128 (known: {known}): "
            f"correct it, or unset {name}"
        )
    if address.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise UserError(f"{name}: a SOCKS proxy needs the package socksio: pip install socksio, or unset {name}")


def is_address(text: str, schemes: Sequence[str]) -> bool:
    """Whether a text is an absolute URL with one of these schemes and a host."""
    try:
        url = urlsplit(text)
        return url.scheme in schemes and bool(url.hostname) and url.port != 0 and text.split() == [text]
    except ValueError:  # of the port, or an open bracket
        return False


HUB = "https://huggingface.co"
SECONDS = 2
"""That the hub may take to answer."""
SWITCHES = (("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("datasets.config", "HF_HUB_OFFLINE"))
"""Where libraries keep what they read from the environment as they were imported."""


def leave_unreachable_hub(name: str) -> None:
    """Where the hub cannot be reached, have its libraries look at downloaded files alone. `name`: a folder or a name on
    the hub; a folder needs no hub. Raises UserError where the environment names no hub, proxy or certificates that can
    be used."""
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


def is_absent(model: str) -> bool:
    """Whether a model is nowhere: no folder, nothing of it downloaded, and the hub was found not to answer. Its
    libraries would say so too, once the seconds of importing them are over."""
    if Path(model).is_dir() or _endpoint() not in _unreachable:
        return False
    from huggingface_hub.constants import HF_HUB_CACHE

    return not (Path(HF_HUB_CACHE) / f"models--{model.replace('/', '--')}").is_dir()


def hub_reason(error: BaseException, name: str) -> str:
    """In one line, why something of the hub could not be loaded."""
    if not Path(name).is_dir() and _endpoint() in _unreachable:
        return unreachable()
    return first_line(error)


def unreachable() -> str:
    """That something of the hub is out of reach, and what to do."""
    return (
        f"it is not on this machine, and the hub {_endpoint()} cannot be reached: give a local folder, or download it "
        "where there is a network"
    )


def is_offline() -> bool:
    """Whether only downloaded files are looked at: by the user's choice, or since the hub does not answer."""
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
