"""An index as a service: over HTTP for other machines, and over MCP."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """The limits of one request to a search server, with the help of their arguments."""

    body_bytes: int = field(default=8 << 20, metadata={"help": "most bytes of a request's body"})
    depth: int = field(default=1000, metadata={"help": "most k + offset"})
    query_characters: int = field(default=131_072, metadata={"help": "most characters of a query"})
    concurrent: int = field(
        default=64, metadata={"help": "most requests at once; more are answered 503 with Retry-After"}
    )
    seconds: float | None = field(default=None, metadata={"help": "most seconds of a request, then it is answered 504"})
