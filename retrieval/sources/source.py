"""The protocol of all sources beside the index: search services and tool servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ratchet.core.records import Passage

QUERY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "what to search for"}},
    "required": ["query"],
    "additionalProperties": False,
}


class ToolError(Exception):
    """A tool refuses a call (bad arguments); the message is for the model that called it."""


@dataclass(frozen=True)
class ToolSpec:
    """The description of a tool for the model that may call it."""

    name: str
    about: str
    """One line for the model that may call it."""
    schema: dict[str, Any]
    """JSON schema of its arguments."""


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool call: passages of a search, else text; or an error message for the model."""

    passages: tuple[Passage, ...] = ()
    text: str = ""
    error: str = ""


class Source(Protocol):
    """A search service or tool server."""

    name: str
    """Its name in the config."""
    digest: str
    """Of its settings: equal digest, same service asked in the same way."""

    async def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        """Ranks offset .. offset + k - 1; fewer where there are no more. Raises SourceError."""
        ...

    async def tools(self) -> list[ToolSpec]: ...

    async def call(self, tool: str, arguments: Mapping[str, Any], k: int) -> ToolResult:
        """Raises ToolError, SourceError. `k`: most passages."""
        ...

    async def close(self) -> None: ...


class SearchSource:
    """Base class of sources that only search: it offers one tool, by its own name."""

    name: str
    about: str

    async def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        raise NotImplementedError

    async def tools(self) -> list[ToolSpec]:
        return [ToolSpec(self.name, self.about, QUERY_SCHEMA)]

    async def call(self, tool: str, arguments: Mapping[str, Any], k: int) -> ToolResult:
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip() or len(arguments) > 1:
            raise ToolError(f'{tool} takes one argument, "query", a text that is not empty')
        return ToolResult(tuple(await self.search(query, k)))

    async def close(self) -> None:
        return None
