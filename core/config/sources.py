"""The section `sources`: search services and tool servers, by the name that systems know them by.

sources:
  web: {service: tavily, mode: local}           # offline: the index answers in its place, and says so
  papers: {service: openalex, summarise: 3}
  lab: {service: mcp, command: [python, server.py]}
  mine: {service: plugin, name: ./my_source.py}
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from ratchet.core.config.paths import PathText
from ratchet.core.config.section import AsGiven, Section
from ratchet.core.errors import fault_in

INDEX = "index"
"""The name of the config's own index among the sources."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
MaxTokens = Annotated[int | None, Field(gt=0, exclude_if=lambda tokens: tokens is None)]


class SourceConfig(Section):
    """A search service. Every response is kept on disk, and the same request is answered from there."""

    service: Literal["tavily", "serper", "wikipedia", "arxiv", "pubmed", "semantic_scholar", "openalex"]
    """The search service."""
    mode: Literal["live", "replay", "local"] = "live"
    """Where responses come from. `live`: the cache, else the network, and then they are written to the cache. `replay`:
    the cache only. `local`: an index on this machine answers in place of the service."""
    index: PathText = ""
    """`mode: local`: index folder that answers. Default: the config's own index."""
    cache: PathText = Field("cache/sources", validate_default=True)
    """Folder of the cached responses. Runs may share it."""
    max_tokens: MaxTokens = None
    """Maximum number of tokens of a passage, by the tokenizer of the model that searches. A longer passage is truncated
    at a word, ends with an ellipsis, and is named in a note of the trajectory. Default: what fits the context. The
    passages of one search share an eighth of the model's `max_context`."""
    summarise: int | None = Field(None, gt=0)
    """Shorten each passage to this number of its own sentences, chosen with the config's `embedder`."""


class McpConfig(Section):
    """A tool server that speaks the Model Context Protocol."""

    service: Literal["mcp"] = "mcp"
    """Always `mcp`."""
    command: tuple[str, ...] = ()
    """Command that starts a server which speaks over its stdin and stdout."""
    env: tuple[str, ...] = ()
    """Names of the environment variables that the command gets, in addition to PATH, HOME, USER and the like."""
    url: str = ""
    """Address of a streamable HTTP server, such as `http://127.0.0.1:8089/mcp`, instead of a command."""
    key_env: str = ""
    """`url`: environment variable that holds the server's bearer token."""
    tools: tuple[str, ...] = ()
    """Tools to offer to the system. Default: all that the server has. Searches go to the only one, or to `search`."""
    max_tokens: MaxTokens = None
    """Maximum number of tokens of a passage, or of a tool's text. Default: as for a search service."""

    @model_validator(mode="after")
    def _check(self) -> McpConfig:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either a command (a list of words) or a url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("url must be an address such as http://127.0.0.1:8089/mcp")
        if self.key_env and not self.url:
            raise ValueError("key_env goes with a url; a command gets its keys by env")
        if self.env and not self.command:
            raise ValueError("env goes with a command; a url gets its key by key_env")
        return self


class PluginConfig(Section):
    """A source of your own: a class `Source` in a file outside our tree."""

    service: Literal["plugin"] = "plugin"
    """Always `plugin`."""
    name: str
    """Path of its file or folder."""
    settings: dict[str, Any] = Field(default={})
    """The source's own settings, which its class `Settings` declares."""
    # A mapping here, because retrieval/ is above this package: load_config checks it.
    max_tokens: MaxTokens = None
    """Maximum number of tokens of a passage, or of a tool's text. Default: as for a search service."""


def _check_names(sources: dict[str, Section]) -> dict[str, Section]:
    for name in sources:
        if name == INDEX:
            raise ValueError(f"{INDEX}: this name is the config's own index; choose another")
        if not NAME.fullmatch(name):
            rule = "use a letter, then letters, digits, _ or -, at most 64"
            raise ValueError(f"{name!r} cannot be a tool's name: {fault_in(name, NAME.fullmatch)}; {rule}")
    return sources


AnySource = Annotated[SourceConfig | McpConfig | PluginConfig, Field(discriminator="service")]
Sources = Annotated[dict[str, Annotated[AnySource, AsGiven]], AfterValidator(_check_names)]
