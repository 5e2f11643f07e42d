"""What the environment tells HTTP clients: proxies and certificates. A mistake is one line that names the variable.

httpx and the hub's client read the variables when a client is made, which may be long after a run began, and their
errors name none of them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from ratchet.core.errors import UserError

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
