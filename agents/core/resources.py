"""The resources of a run's systems beside models and the index: other sources, an evidence memory, an embedder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ratchet.core.config import DEFAULT_EMBEDDER, Config, Thresholds
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.records import content_key
from ratchet.core.text import shortened
from ratchet.inference.chat import first_tokens
from ratchet.inference.engine import Engine
from ratchet.retrieval.encoders.limits import Embed
from ratchet.retrieval.retriever import Retriever
from ratchet.retrieval.sources.source import Source, ToolResult

if TYPE_CHECKING:
    import numpy as np

    from ratchet.retrieval.memory import Memory

SHARE = 8
"""One result of a source may fill one part in so many of a context: Tool-MAD's judge reads six searches."""


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
    max_tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens of a passage, of the sources that say so; others cut to what fits the context."""
    digest: str = ""
    """Digest of these settings; empty where nothing is configured."""
    embedder: str = ""
    """Digest of an embedder that is neither the default one nor in `digest`; it counts where a system may embed."""

    def part_of_keys(self, index: str, embeds: bool) -> str:
        """What a trajectory's key has of the index, whose digest this is, and of these."""
        parts = [part for part in (self.digest, self.embedder if embeds else "") if part]
        return content_key(index, *parts) if parts else index

    def source(self, name: str) -> Source:
        """A source by its name under `sources`. Raises UserError where the config has none of that name."""
        try:
            return self.sources[name]
        except KeyError:
            known = did_you_mean(name, self.sources)
            raise UserError(
                f"sources: the system searches {name!r}, which the config has not{known}; offline, for example: "
                f"sources: {{{name}: {{service: tavily, mode: local}}}}"
            ) from None

    def fit(self, engine: Engine, source: str, result: ToolResult) -> tuple[ToolResult, str]:
        """Cut a source's result to the tokens of the engine's model that its passages may take; return it with a remark
        on the cuts, or "". A passage that was cut has an id of its own."""
        fitting = engine.max_context // SHARE // max(1, len(result.passages))
        most = self.max_tokens.get(source) or max(1, fitting)

        def fit(text: str, max_tokens: int) -> str:
            return shortened(text, max(1, len(first_tokens(engine.format, text, max_tokens))))

        passages = tuple(p.with_text(fit(p.text, most)) for p in result.passages)
        fitted = replace(result, passages=passages, text=result.text if passages else fit(result.text, most))
        cut = [old.id for old, new in zip(result.passages, passages, strict=True) if new.id != old.id]
        if fitted.text != result.text:
            cut.append("its text")
        remark = f"{source}: {len(cut)} document(s) cut to {most} tokens ({', '.join(cut)})" if cut else ""
        return fitted, remark

    async def close(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for source in self.sources.values():
                stack.push_async_callback(source.close)
            if self.memory is not None:
                stack.callback(self.memory.close)


def open_resources(config: Config, retriever: Retriever) -> Resources:
    """The sources, the memory and the embedder. The embedder's model is loaded by the first text. UserError."""
    from ratchet.retrieval.encoders.dense import open_embedder  # late: a system is looked up without what it reaches
    from ratchet.retrieval.memory import memory_of
    from ratchet.retrieval.sources.registry import open_sources

    embedder = config.embedder
    sources = open_sources(config.sources, retriever, embedder)
    memory = memory_of(config)
    facts: dict[str, Any] = {name: source.digest for name, source in sources.items()}
    max_tokens = {name: cut for name, source in config.sources.items() if (cut := source.max_tokens)}
    if max_tokens:
        facts["max_tokens"] = max_tokens
    if config.memory is not None:
        facts["memory"] = memory.digest
    if embedder.url is not None or embedder.thresholds != DEFAULT_EMBEDDER.thresholds:
        facts["embedder"] = [embedder.identity, embedder.thresholds.model_dump()]
    digest = content_key("reach", facts) if facts else ""
    is_told = "embedder" in facts or embedder.identity == DEFAULT_EMBEDDER.identity
    other = "" if is_told else content_key("embedder", embedder.identity)
    return Resources(sources, memory, open_embedder(embedder), embedder.thresholds, max_tokens, digest, other)
