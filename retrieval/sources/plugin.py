"""Sources of one's own: code outside our tree, found as `ratchet.plugins` says.

A source plug-in is a module with

    class Settings(Section)                  its own part of the config, checked strictly
    class Source(SearchSource)               made as Source(name, settings); SearchSource says what it may override

A source that returns something else tomorrow, such as one over a folder of files, sets `digest` to what identifies it.
"""

from __future__ import annotations

from typing import cast

from ratchet.config import PluginConfig, Section, parse
from ratchet.plugins import Plugin, load_plugin
from ratchet.records import content_key
from retrieval.sources.source import Source


def load_source(name: str, config: PluginConfig) -> tuple[Plugin, Section]:
    """The code of a source and its settings, checked. Raises UserError."""
    plugin = load_plugin("sources", config.name, ("Settings", "Source"), f"sources.{name}.name")
    return plugin, parse(plugin.module.Settings, config.settings, "", f"sources.{name}.settings")


def open_plugin_source(name: str, config: PluginConfig) -> Source:
    """The source, with a digest of its code, its settings and what it says itself. Raises UserError."""
    plugin, settings = load_source(name, config)
    source = plugin.module.Source(name, settings)
    own = getattr(source, "digest", "")
    source.digest = content_key("plugin", plugin.digest, settings.model_dump(mode="json"), own)
    return cast(Source, source)
