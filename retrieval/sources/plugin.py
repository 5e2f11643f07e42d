"""A source of the user's own: a module, found as `core/plugins.py` says, with

    class Settings(Section)                  its own part of the config, checked strictly
    class Source(SearchSource)               made as Source(name, settings); SearchSource says what it may override

A source that returns something else tomorrow, such as one over a folder of files, sets `digest` to what identifies it.
It is apart from the registry, whose HTTP clients a command that only looks at a config does not need.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ratchet.core.config import PluginConfig, Section, parse
from ratchet.core.plugins import Plugin, load_plugin
from ratchet.core.records import Passage, content_key
from ratchet.retrieval.retriever import SourceError
from ratchet.retrieval.sources.source import Source, ToolError, ToolResult, ToolSpec

T = TypeVar("T")


def load_source(name: str, config: PluginConfig) -> tuple[Plugin, Section]:
    """The code of a source and its settings, checked. Raises UserError."""
    plugin = load_plugin("sources", config.name, ("Settings", "Source"), f"sources.{name}.name")
    with plugin.errors("is not a source as retrieval/sources/registry.py describes it"):
        return plugin, parse(plugin.module.Settings, config.settings, "", f"sources.{name}.settings")


def open_plugin_source(name: str, config: PluginConfig) -> Source:
    """The source, with a digest of its code, its settings and what it says itself. Raises UserError."""
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
