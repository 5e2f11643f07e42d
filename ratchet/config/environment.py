"""What the systems of an experiment run in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet.config.encoders import EmbedderConfig
from ratchet.config.index import IndexConfig
from ratchet.config.memory import MemoryConfig
from ratchet.config.models import ModelConfig
from ratchet.config.sources import Sources


@dataclass(frozen=True)
class Environment:
    """The models that play roles, all that systems can reach beside them, and the seed of what they draw."""

    models: Mapping[str, ModelConfig]
    """By the name that roles use."""
    index: IndexConfig
    sources: Sources
    memory: MemoryConfig | None
    embedder: EmbedderConfig
    run: Path
    """The run folder, in which the evidence memory lies by default."""
    seed: int
