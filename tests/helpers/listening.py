"""An app behind the HTTP server that our commands use, in a thread."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from ratchet.core.http.server import address_of, listen, server_settings


@contextlib.contextmanager
def listening(app: Any, port: int = 0) -> Iterator[str]:
    """The address of the app's server, which ends with the block."""
    with listen("127.0.0.1", port) as listener:
        server = uvicorn.Server(server_settings(app, 1))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield address_of(listener)
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
