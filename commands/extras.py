"""Whether the packages that a config needs are installed: said at once, not after hours of work."""

from __future__ import annotations

from ratchet.config import Config, IndexConfig, McpConfig, TrainingConfig, is_missing, load_members
from ratchet.extras import need_extra
from rewards.reward import load_reward


def check_extras(config: Config) -> None:
    """Raises UserError where an extra is missing that a stage of self-training needs."""
    for member in load_members(config).values():
        check_system_extras(member)
        check_scoring_extras(member)
    check_training_extras(config.training)


def check_index_extras(index: IndexConfig) -> None:
    """For building or opening an index."""
    if is_missing(index) or index.url is not None:
        return
    if index.engine != "ratchet":
        need_extra(index.engine, f"index.engine: {index.engine}")
    if index.kind == "dense":
        need_extra("dense", "index.kind: dense")


def check_system_extras(config: Config) -> None:
    """For asking the systems of a config."""
    check_index_extras(config.index)
    if any(isinstance(source, McpConfig) for source in config.sources.values()):
        need_extra("mcp", "a source with service: mcp")
    if any(system.name == "external" for system in config.systems.values()):
        need_extra("server", "system.name: external")


def check_scoring_extras(config: Config) -> None:
    """For the rewards and measures of a config."""
    audited = config.audited
    for name in (*config.rewards.weights, *(audited.rewards.weights if audited else ()), *config.evaluation.scores):
        if config.embedder.engine == "local" and load_reward(name).needs_embedder:
            need_extra("dense", f"{name} without a server for its embedder")


def check_training_extras(training: TrainingConfig) -> None:
    """For training; `training.unsloth` looks for its own."""
    if training.wandb != "off":
        need_extra("wandb", f"training.wandb={training.wandb}")
