"""The protocol of all sources beside the index, search services and tool servers, and sources of the user's own.

One of the user's own is a module, found as `core/plugins.py` says, with

    class Settings(Section)                  its own part of the config, checked strictly
    class Source(SearchSource)               made as Source(name, settings); SearchSource says what it may override

A source that returns something else tomorrow, such as one over a folder of files, sets `digest` to what identifies it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ratchet.core.config import PluginConfig, Section, parse
from ratchet.core.plugins import Plugin, load_plugin
from ratchet.core.records import Passage, content_key
from ratchet.retrieval.retriever import SearchError, SourceError

T = TypeVar("T")
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
    digest: str
    """A digest of its settings: equal digest, same service asked in the same way."""

    async def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        """Ranks offset .. offset + k - 1; fewer where there are no more. Raises SourceError."""

    async def tools(self) -> list[ToolSpec]: ...

    async def call(self, tool: str, arguments: Mapping[str, Any], k: int) -> ToolResult:
        """Raises ToolError, SourceError. `k`: most passages."""

    async def close(self) -> None: ...


class SourceIndex:
    """A source as the Retriever of threads: it is asked by an event loop of its own, which the first search starts."""

    def __init__(self, source: Source) -> None:
        self.digest = source.digest
        self._source = source
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        """Return the passages of ranks offset .. offset + k - 1, as many as the source gives. Raises SearchError."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), name="source", daemon=True).start()
        try:
            return self._wait(self._source.search(query, k, offset))
        except SourceError as error:
            raise SearchError(f"index.source: {error}") from error

    def close(self) -> None:
        """Close the source and its connections."""
        with self._lock:
            if self._loop is not None:
                self._wait(self._source.close())
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


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


def load_source(name: str, config: PluginConfig) -> tuple[Plugin, Section]:
    """Return the code of a source and its settings, checked. Raises UserError."""
    plugin = load_plugin("sources", config.name, ("Settings", "Source"), f"sources.{name}.name")
    with plugin.errors("is not a source as retrieval/sources/source.py describes it"):
        return plugin, parse(plugin.module.Settings, config.settings, "", f"sources.{name}.settings")


def open_plugin_source(name: str, config: PluginConfig) -> Source:
    """Open the source, with a digest of its code, its settings and what it says itself. Raises UserError."""
    plugin, settings = load_source(name, config)
    with plugin.errors("Source cannot be made"):
        source = plugin.module.Source(name, settings)
        own = getattr(source, "digest", "")
        digest = content_key("plugin", plugin.digest, settings.model_dump(mode="json"), own)
    return PluginSource(name, digest, plugin, source)


class PluginSource:
    """A source by outside code. What it raises, and a result of another type, is a SourceError: as for any service,
    the agent goes on without it, or the trajectory fails, and the command stops after several such in a row."""

    def __init__(self, name: str, digest: str, plugin: Plugin, source: Source) -> None:
        self.name, self.digest = name, digest
        self._plugin, self._source = plugin, source

    async def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        with self._faults("search"):
            return _list_of(Passage, await self._source.search(query, k, offset))

    async def tools(self) -> list[ToolSpec]:
        with self._faults("tools"):
            return _list_of(ToolSpec, await self._source.tools())

    async def call(self, tool: str, arguments: Mapping[str, Any], k: int) -> ToolResult:
        with self._faults("call"):
            result = await self._source.call(tool, arguments, k)
            if not isinstance(result, ToolResult):
                raise TypeError(f"it returned {type(result).__name__} and not a ToolResult")
            _list_of(Passage, result.passages)
            return result

    async def close(self) -> None:
        with self._plugin.errors("close failed"):
            await self._source.close()

    def _faults(self, method: str) -> AbstractContextManager[None]:
        return self._plugin.errors(f"{method} failed", SourceError, ToolError, becomes=SourceError)


def _list_of(kind: type[T], items: object) -> list[T]:
    if not isinstance(items, list | tuple) or not all(isinstance(item, kind) for item in items):
        raise TypeError(f"it returned {type(items).__name__} and not a list of {kind.__name__}")
    return list(items)
