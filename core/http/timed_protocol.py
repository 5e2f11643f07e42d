"""uvicorn's HTTP/1.1 with a time limit on what a client has to send: uvicorn itself waits for headers for ever."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CLIENT_SECONDS = 30.0
"""Seconds for the line and headers of a request, and for a body that the answer did not wait for."""


class TimedProtocol(H11Protocol):
    """Closes a connection whose client does not send a request's headers, or the rest of an answered one, in time.

    A body that the app reads has the app's own limit (ratchet.core.http.guard). A connection that is idle between two
    requests is uvicorn's to close (timeout_keep_alive).
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit(True)

    def handle_events(self) -> None:
        super().handle_events()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit(False)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP. An app that works on its beginning does not answer as well, nor do we if it has."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing is logged where a client asks for another protocol: the guard refuses WebSockets."""

    def _watch(self) -> None:
        has_part_of_headers = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        has_unread_body = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        self._limit(has_part_of_headers or has_unread_body)

    def _limit(self, waits: bool) -> None:
        """Start the time limit or end it. While the client is still sending the same, the limit does not move."""
        if waits and self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(CLIENT_SECONDS, self.transport.close)
        elif not waits and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
