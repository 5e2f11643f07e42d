"""Opens the sources of a config: search services, tool servers, or the index in their place.

    sources:
      web: {service: tavily, mode: local}           # offline: the index answers in its place, and says so
      papers: {service: openalex, summarise: 3}
      lab: {service: mcp, command: [python, server.py]}
      mine: {service: plugin, name: ./my_source.py}

Every response of a service is kept on disk (`cache`), and the same request is answered from there: a run that is
repeated sees the same web. `mode: replay` never uses the network.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from ratchet.core.config import DEFAULT_EMBEDDER, EmbedderConfig, IndexConfig, McpConfig, PluginConfig, SourceConfig
from ratchet.core.config.retrieval import INDEX
from ratchet.core.config.section import missing_section
from ratchet.core.errors import UserError
from ratchet.core.http.clients import is_local
from ratchet.core.http.environment import check_environment
from ratchet.core.installed import DISTRIBUTION
from ratchet.retrieval.encoders.dense import open_embedder
from ratchet.retrieval.retriever import NoIndex, Retriever
from ratchet.retrieval.sources.client import ResponseCache, WebClient
from ratchet.retrieval.sources.service import LocalSource, Summariser, WebService
from ratchet.retrieval.sources.services import (
    Arxiv,
    OpenAlex,
    Pubmed,
    Searxng,
    SemanticScholar,
    Serper,
    Tavily,
    Wikipedia,
)
from ratchet.retrieval.sources.source import Source, SourceIndex, open_plugin_source

SERVICES: dict[str, type[WebService]] = {
    kind.service: kind for kind in (Tavily, Serper, Searxng, Wikipedia, Arxiv, Pubmed, SemanticScholar, OpenAlex)
}
CONTACT = "RATCHET_CONTACT"
PRINTABLE = re.compile(r"[\x20-\x7e]*")


def open_sources(
    configs: Mapping[str, SourceConfig | McpConfig | PluginConfig],
    retriever: Retriever,
    embedder: EmbedderConfig = DEFAULT_EMBEDDER,
) -> dict[str, Source]:
    """Open the sources by name; connects nowhere yet. `embedder`: the config's, for `summarise`. Raises UserError."""
    return {name: _open(name, config, retriever, embedder) for name, config in configs.items()}


def open_source_index(config: SourceConfig | McpConfig | PluginConfig) -> Retriever:
    """Open a source that is searched in place of an index. Raises UserError."""
    return SourceIndex(_open(INDEX, config, NoIndex(missing_section(IndexConfig, "index")), DEFAULT_EMBEDDER))


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
        name_of_embedder = embedder.model_dump(mode="json", exclude=machine, exclude_defaults=True) | embedder.service
        summariser = Summariser(open_embedder(embedder), name_of_embedder, config.summarise)
    if config.mode == "local":
        return _local_source(name, config, kind, summariser, retriever)
    cache = ResponseCache(Path(config.cache), config.mode)
    return kind(name, summariser, _client(name, config, kind), cache, config.language)


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
    url = config.url or kind.url.format(language=config.language or "en")
    if config.mode == "live" and not is_local(url):
        check_environment()  # the client is opened by the first search
    contact = _from_environment(CONTACT)
    access = kind.access(key, contact)
    agent = f"ratchet/{version(DISTRIBUTION)}" + (f" ({contact})" if contact else "")
    refused = f"check the key in {variable}" if variable else access.refused
    return WebClient(
        kind.service,
        url,
        replace(access, headers={"User-Agent": agent, **access.headers}, secret=key, refused=refused),
        (kind.per_second_with_key if key else None) or kind.per_second,
    )


def _from_environment(variable: str) -> str:
    text = os.environ.get(variable, "").strip()
    if not PRINTABLE.fullmatch(text):  # which a header may not hold; a key is not shown
        raise UserError(f"the environment variable {variable} holds characters that are not printable ASCII")
    return text
