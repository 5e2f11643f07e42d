"""Answers that no HTTP client should have to read: what a broken, foreign or hostile server puts on the wire."""

import contextlib
import gzip
import socket
import struct

DEEP = b"[" * 100_000
"""More levels than any reader's stack holds."""


def wire(body: bytes = b"", status: int = 200, **headers: str) -> bytes:
    """A whole HTTP answer. An underscore in a header's name is a hyphen."""
    given = {"content-type": "application/json", "content-length": str(len(body))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} Odd", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode("latin-1") + body


def packed(body: bytes, coding: str = "gzip") -> bytes:
    return wire(body, content_encoding=coding)


def bomb(megabytes: int) -> bytes:
    """So many megabytes of blanks, packed to a thousandth."""
    return packed(gzip.compress(b" " * (megabytes << 20), 1))


ODD: dict[str, bytes] = {
    "an empty body": wire(),
    "no JSON": wire(b"<html>Welcome</html>"),
    "another type": wire(b"[1, null]"),
    "a number": wire(b"7"),
    "deep JSON": wire(DEEP),
    "deep but whole JSON": wire(b'{"choices": ' + b"[" * 400 + b"]" * 400 + b"}"),
    "a number of 5,000 digits": wire(b'{"usage": ' + b"9" * 5_000 + b"}"),
    "invalid UTF-8": wire(b'{"choices": "\xff\xfe"}'),
    "no gzip": packed(b"no gzip at all"),
    "damaged gzip": packed(gzip.compress(b"{}" * 999)[:-12] + bytes(12)),
    "gzip cut off": packed(gzip.compress(b"{}" * 999)[:-9]),
    "unknown packing": packed(b"\x1b\x00\x00", "br"),
    "packed twice": packed(gzip.compress(gzip.compress(b"{}")), "gzip, gzip"),
    "an illegal header": b"HTTP/1.1 200 OK\r\nno colon in this one\r\n\r\n{}",
    "an illegal status": b"HTTP/1.1 abc\r\n\r\n{}",
    "no HTTP": b"\x16\x03\x01\x00\x00 what is this?\r\n\r\n",
    "a negative length": wire(b"{}", content_length="-5"),
    "a redirect to itself": wire(status=302, location="/v1/completions"),
    "a redirect to no address": wire(status=307, location="http://[/"),
    "an error with deep JSON": wire(DEEP, 400),
    "an error in a charset that is none": wire(b"ab", 400, content_type="text/plain; charset=hex"),
    "an error with broken gzip": wire(b"no gzip", 400, content_encoding="gzip"),
    "an error with half a surrogate pair": wire(b'{"error": {"message": "\\ud800 \\udc00\\ud800"}}', 400),
    "an odd cookie": wire(b"no", set_cookie="a=\xe9\xff; Path=/"),
}
"""Each of these is a failure of the one request that it answers."""


def send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a client that has seen enough
        connection.sendall(data)


def flood(connection: socket.socket, most: int) -> int:
    """Answer with blanks for as long as they are read, up to `most` bytes; returns how many were sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    sent = 0
    if not most:
        return sent
    with contextlib.suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while sent < most:
            connection.sendall(b" " * 65536)
            sent += 65536
    return sent
