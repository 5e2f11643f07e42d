"""Opening the sources of a config: search services, tool servers, and the index in their place.

    sources:
      web: {service: tavily, mode: local}           # offline: the index answers in its place, and says so
      papers: {service: openalex, keywords: true, summarise: 3}
      lab: {service: mcp, command: [python, server.py]}

Every response of a service is kept on disk (`cache`), and the same request is answered from there: a run that is done
again sees the same web. `mode: replay` never touches the network, `mode: record` fetches everything anew.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import Field, field_validator

from ratchet.config import Section, parse
from ratchet.errors import UserError
from ratchet.http.retry import Backoff
from retrieval.encoders.embedder import DEFAULT, open_embedder
from retrieval.index import Retriever
from retrieval.sources.source import Source
from retrieval.sources.summariser import Summariser
from retrieval.sources.web.arxiv import Arxiv
from retrieval.sources.web.cache import ResponseCache
from retrieval.sources.web.client import WebClient
from retrieval.sources.web.openalex import OpenAlex
from retrieval.sources.web.pubmed import Pubmed
from retrieval.sources.web.semantic_scholar import SemanticScholar
from retrieval.sources.web.serper import Serper
from retrieval.sources.web.service import StandIn, Treatment, WebService
from retrieval.sources.web.tavily import Tavily
from retrieval.sources.web.wikipedia import Wikipedia

SERVICES: dict[str, type[WebService]] = {
    kind.service: kind for kind in (Tavily, Serper, Wikipedia, Arxiv, Pubmed, SemanticScholar, OpenAlex)
}
CONTACT = "RATCHET_CONTACT"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
PRINTABLE = re.compile(r"[\x20-\x7e]*")


class SourceConfig(Section):
    """A search service. One with `service: mcp` has the keys of McpConfig in retrieval/sources/mcp.py instead."""

    service: Literal["tavily", "serper", "wikipedia", "arxiv", "pubmed", "semantic_scholar", "openalex"]
    mode: Literal["live", "record", "replay", "local"] = "live"
    """live: from the cache, else over the network. record: over the network, and into the cache. replay: from the
    cache only. local: from an index on this machine, in the service's place."""
    index: str = ""
    """local: the index folder that answers; default: the config's own index."""
    cache: str = "cache/sources"
    """The folder of responses; runs may share it."""
    url: str | None = None
    """Another address of the service, such as a proxy's; default: its own."""
    key_env: str | None = None
    """The environment variable that holds the key; default: the service's own, such as TAVILY_API_KEY."""
    contact: str | None = None
    """An address at which the services can reach you; default: the environment variable RATCHET_CONTACT."""
    per_second: float | None = Field(None, gt=0)
    """Requests a second to this host, of all that this process asks; default: what the service's rules allow."""
    timeout: float = Field(30.0, gt=0)
    """Seconds that one try may take."""
    deadline: float = Field(180.0, gt=0)
    """Seconds that a request may take with all its tries; waiting for its turn does not count."""
    tries: int = Field(5, gt=0)
    wait: float = Field(1.0, gt=0)
    """Longest wait before the second try, in seconds; it doubles with every further one."""
    max_characters: int = Field(4000, gt=0)
    """Of a passage's text; what is longer is cut and ends with an ellipsis."""
    keywords: bool = False
    """Ask for the query's content words in place of the query."""
    summarise: int | None = Field(None, gt=0)
    """Shorten each passage to so many of its sentences, chosen with the config's `embedder`."""

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is not None:
            try:
                parsed = httpx.URL(url)
            except httpx.InvalidURL as error:
                raise ValueError(f"not an address ({error})") from None
            if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo or parsed.query:
                raise ValueError("expected an address such as https://en.wikipedia.org")
        return url


def open_sources(
    configs: Mapping[str, Mapping[str, Any]], retriever: Retriever, embedder: Mapping[str, Any] | None = None
) -> dict[str, Source]:
    """The sources by name. Connects nowhere yet. `embedder`: the config's, for `summarise`. UserError."""
    return {name: _open(name, settings, retriever, embedder or DEFAULT) for name, settings in configs.items()}


def _open(name: str, settings: Mapping[str, Any], retriever: Retriever, embedder: Mapping[str, Any]) -> Source:
    if name == "index":
        raise UserError("sources.index: this name is the config's own index; choose another")
    if not NAME.fullmatch(name):
        raise UserError(f"sources: {name!r} cannot be a tool's name: a letter, then letters, digits, _ or -")
    if settings.get("service") == "mcp":
        from retrieval.sources.mcp import McpConfig, McpSource

        rest = {key: value for key, value in settings.items() if key != "service"}
        return McpSource(name, parse(McpConfig, rest, f"sources.{name}"))
    config = parse(SourceConfig, dict(settings), f"sources.{name}")
    kind = SERVICES[config.service]
    treatment = Treatment(config.keywords)
    if config.summarise is not None:
        summariser = Summariser(open_embedder(embedder), dict(embedder))
        treatment = Treatment(config.keywords, summariser, config.summarise)
    if config.mode == "local":
        return _stand_in(name, config, kind, treatment, retriever)
    cache = ResponseCache(Path(config.cache), config.mode)
    return kind(name, treatment, _client(name, config, kind), cache, config.max_characters)


def _stand_in(
    name: str, config: SourceConfig, kind: type[WebService], treatment: Treatment, retriever: Retriever
) -> Source:
    if config.index:
        from retrieval.opening import open_folder

        retriever = open_folder(config.index)
    answers = config.index or "the config's index"
    print(f"sources.{name}: mode: local, {answers} answers in place of {kind.service}", file=sys.stderr)
    return StandIn(name, treatment, kind.service, kind.about, retriever)


def _client(name: str, config: SourceConfig, kind: type[WebService]) -> WebClient:
    variable = config.key_env or kind.key_env
    key = _from_environment(variable) if variable else ""
    if kind.key_needed and not key and config.mode != "replay":
        raise UserError(
            f"sources.{name}: {kind.service} needs a key in the environment variable {variable}; without one, "
            "mode: replay answers from the cache and mode: local from an index"
        )
    contact = _printable(config.contact or "", f"sources.{name}.contact") or _from_environment(CONTACT)
    access = kind.access(key, contact)
    agent = f"ratchet/{_version()}" + (f" ({contact})" if contact else "")
    refused = f"check the key in {variable}" if variable else access.refused
    return WebClient(
        kind.service,
        config.url or kind.url,
        replace(access, headers={"User-Agent": agent, **access.headers}, secret=key, refused=refused),
        config.per_second or (kind.per_second_with_key if key else None) or kind.per_second,
        config.timeout,
        config.deadline,
        Backoff(config.tries, config.wait, longest=60.0),
    )


def _from_environment(variable: str) -> str:
    return _printable(os.environ.get(variable, "").strip(), f"the environment variable {variable}")


def _printable(text: str, where: str) -> str:
    """What a header may hold; the text itself, which may be a key, is not shown."""
    if not PRINTABLE.fullmatch(text):
        raise UserError(f"{where} holds characters that are not printable ASCII")
    return text


def _version() -> str:
    try:
        return version("ratchet")
    except PackageNotFoundError:
        return "0"
