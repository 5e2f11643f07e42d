"""Where agents look beyond the index: search services and tool servers, all seen through one protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ratchet.records import Passage

QUERY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "what to search for"}},
    "required": ["query"],
    "additionalProperties": False,
}


class SourceError(Exception):
    """A service cannot be reached, or keeps refusing: nobody's answer. The trajectory fails and is done again later."""


class ToolFault(Exception):
    """A tool refuses what it was asked (bad arguments): its words are for the model that asked."""


@dataclass(frozen=True)
class ToolSpec:
    name: str
    about: str
    """One line for the model that may call it."""
    schema: dict[str, Any]
    """JSON schema of its arguments."""


@dataclass(frozen=True)
class Found:
    """What a tool call gave: passages where it searched, else text; or an error in words for a model."""

    passages: tuple[Passage, ...] = ()
    text: str = ""
    error: str = ""


class Source(Protocol):
    name: str
    """Its name in the config."""
    digest: str
    """Of its settings: equal digest, same service asked in the same way."""

    async def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        """Ranks offset .. offset + k - 1; fewer where there are no more. Raises SourceError."""
        ...

    async def tools(self) -> list[ToolSpec]: ...

    async def call(self, tool: str, arguments: Mapping[str, Any], k: int) -> Found:
        """Raises ToolFault, SourceError. `k`: most passages."""
        ...

    async def close(self) -> None: ...


class SearchSource:
    """What every source that only searches has in common: it offers one tool, by its own name."""

    name: str
    about: str

    async def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        raise NotImplementedError

    async def tools(self) -> list[ToolSpec]:
        return [ToolSpec(self.name, self.about, QUERY_SCHEMA)]

    async def call(self, tool: str, arguments: Mapping[str, Any], k: int) -> Found:
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip() or len(arguments) > 1:
            raise ToolFault(f'{tool} takes one argument, "query", a text that is not empty')
        return Found(tuple(await self.search(query, k)))

    async def close(self) -> None:
        return None
