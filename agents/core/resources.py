"""What a run's systems can reach beside models and the index: other sources, an evidence memory, an embedder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ratchet.config import Config, MemoryConfig, Thresholds
from ratchet.records import content_key
from retrieval.encoders.dense import Embed
from retrieval.encoders.embedder import open_embedder
from retrieval.index import Retriever
from retrieval.memory.memory import Memory
from retrieval.sources.source import Source

INDEX = "index"
"""The name of the config's own index among the sources."""


def no_embedder(texts: Sequence[str]) -> np.ndarray:
    """The embedder of a run without one. Raises AssertionError."""
    raise AssertionError("this run has no embedder")


@dataclass(frozen=True)
class Resources:
    """The sources, the evidence memory and the embedder of a run."""

    sources: Mapping[str, Source] = field(default_factory=dict)
    memory: Memory | None = None
    embed: Embed = no_embedder
    thresholds: Thresholds = field(default_factory=Thresholds)
    """Of scores that the embedder makes."""
    max_tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens of a passage, of the sources that say so; others cut to what fits the context."""
    digest: str = ""
    """Of what is configured here; empty where nothing is."""

    async def close(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for source in self.sources.values():
                stack.push_async_callback(source.close)
            if self.memory is not None:
                stack.callback(self.memory.close)


def open_resources(config: Config, retriever: Retriever) -> Resources:
    """The sources, memory and embedder of a config. The embedder's model is loaded by the first text. UserError."""
    from retrieval.sources.registry import open_sources

    sources = open_sources(config.sources, retriever, config.embedder)
    memory = Memory(config.memory or MemoryConfig(), config.folder / "memory")
    facts: dict[str, Any] = {name: source.digest for name, source in sources.items()}
    max_tokens = {name: cut for name, source in config.sources.items() if (cut := source.max_tokens)}
    if max_tokens:
        facts["max_tokens"] = max_tokens
    if config.memory is not None:
        facts["memory"] = memory.digest
    # Earlier runs have no embedder in their keys: a run folder keeps to one, so only what is newer has to be in them.
    if {"engine", "thresholds"} & config.embedder.model_fields_set:
        facts["embedder"] = [config.embedder.identity, config.embedder.thresholds.model_dump()]
    digest = content_key("reach", facts) if facts else ""
    return Resources(sources, memory, open_embedder(config.embedder), config.embedder.thresholds, max_tokens, digest)
