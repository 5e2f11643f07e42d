"""Opens the sources of a config: search services, tool servers, or the index in their place.

    sources:
      web: {service: tavily, mode: local}           # offline: the index answers in its place, and says so
      papers: {service: openalex, summarise: 3}
      lab: {service: mcp, command: [python, server.py]}
      mine: {service: plugin, name: ./my_source.py}

Every response of a service is kept on disk (`cache`), and the same request is answered from there: a run that is
repeated sees the same web. `mode: replay` never uses the network.

A source plug-in, found as `core/plugins.py` says, is a module with

    class Settings(Section)                  its own part of the config, checked strictly
    class Source(SearchSource)               made as Source(name, settings); SearchSource says what it may override

A source that returns something else tomorrow, such as one over a folder of files, sets `digest` to what identifies it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from ratchet.core.config import DEFAULT_EMBEDDER, EmbedderConfig, McpConfig, PluginConfig, Section, SourceConfig, parse
from ratchet.core.errors import UserError
from ratchet.core.extras import DISTRIBUTION
from ratchet.core.http.clients import check_client_environment
from ratchet.core.plugins import Plugin, load_plugin
from ratchet.core.records import Passage, content_key
from ratchet.retrieval.encoders.embedder import open_embedder
from ratchet.retrieval.retriever import Retriever, SourceError
from ratchet.retrieval.sources.client import ResponseCache, WebClient
from ratchet.retrieval.sources.service import LocalSource, Summariser, WebService
from ratchet.retrieval.sources.services import Arxiv, OpenAlex, Pubmed, SemanticScholar, Serper, Tavily, Wikipedia
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


SERVICES: dict[str, type[WebService]] = {
    kind.service: kind for kind in (Tavily, Serper, Wikipedia, Arxiv, Pubmed, SemanticScholar, OpenAlex)
}
CONTACT = "RATCHET_CONTACT"
PRINTABLE = re.compile(r"[\x20-\x7e]*")


def open_sources(
    configs: Mapping[str, SourceConfig | McpConfig | PluginConfig],
    retriever: Retriever,
    embedder: EmbedderConfig = DEFAULT_EMBEDDER,
) -> dict[str, Source]:
    """The sources by name. Connects nowhere yet. `embedder`: the config's, for `summarise`. UserError."""
    return {name: _open(name, config, retriever, embedder) for name, config in configs.items()}


def _open(
    name: str, config: SourceConfig | McpConfig | PluginConfig, retriever: Retriever, embedder: EmbedderConfig
) -> Source:
    if isinstance(config, PluginConfig):
        return open_plugin_source(name, config)
    if isinstance(config, McpConfig):
        from ratchet.retrieval.sources.mcp import McpSource

        return McpSource(name, config)
    kind = SERVICES[config.service]
    summariser = None
    if config.summarise is not None:
        machine = {"url", "api_key_env", "thresholds"}
        name_of_embedder = embedder.model_dump(mode="json", exclude=machine, exclude_unset=True)
        summariser = Summariser(open_embedder(embedder), name_of_embedder, config.summarise)
    if config.mode == "local":
        return _local_source(name, config, kind, summariser, retriever)
    cache = ResponseCache(Path(config.cache), config.mode)
    return kind(name, summariser, _client(name, config, kind), cache)


def _local_source(
    name: str, config: SourceConfig, kind: type[WebService], summariser: Summariser | None, retriever: Retriever
) -> Source:
    if config.index:
        from ratchet.retrieval.loader import open_folder

        retriever = open_folder(config.index)
    answers = config.index or "the config's index"
    print(f"sources.{name}: mode: local, {answers} answers in place of {kind.service}", file=sys.stderr)
    return LocalSource(name, summariser, kind.service, kind.about, retriever)


def _client(name: str, config: SourceConfig, kind: type[WebService]) -> WebClient:
    variable = kind.key_env
    key = _from_environment(variable) if variable else ""
    if kind.key_needed and not key and config.mode != "replay":
        raise UserError(
            f"sources.{name}: {kind.service} needs a key in the environment variable {variable}; without one, "
            "mode: replay answers from the cache and mode: local from an index"
        )
    if variable and not key and config.mode != "replay":
        print(
            f"sources.{name}: no key in the environment variable {variable}; {kind.service} is asked without one, and "
            "allows fewer requests",
            file=sys.stderr,
        )
    if config.mode == "live":
        check_client_environment()  # the client is opened by the first search
    contact = _from_environment(CONTACT)
    access = kind.access(key, contact)
    agent = f"ratchet/{version(DISTRIBUTION)}" + (f" ({contact})" if contact else "")
    refused = f"check the key in {variable}" if variable else access.refused
    return WebClient(
        kind.service,
        kind.url,
        replace(access, headers={"User-Agent": agent, **access.headers}, secret=key, refused=refused),
        (kind.per_second_with_key if key else None) or kind.per_second,
    )


def _from_environment(variable: str) -> str:
    return _printable(os.environ.get(variable, "").strip(), f"the environment variable {variable}")


def _printable(text: str, where: str) -> str:
    """What a header may hold; the text itself, which may be a key, is not shown."""
    if not PRINTABLE.fullmatch(text):
        raise UserError(f"{where} holds characters that are not printable ASCII")
    return text
