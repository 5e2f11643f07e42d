"""Whether the packages, accounts and proxies that a config needs are there: said at once, not after hours of work."""

from __future__ import annotations

from pathlib import Path

from ratchet.core.config import Config, IndexConfig, McpConfig, SourceConfig, TrainingConfig, is_missing, load_members
from ratchet.core.extras import need_extra
from ratchet.core.http.environment import check_environment
from ratchet.core.hub import is_offline
from ratchet.rewards.reward import load_reward
from ratchet.training.tracking import check_wandb


def check_extras(config: Config) -> None:
    """Raises UserError where something is missing that a stage of self-training needs."""
    for member in load_members(config).values():
        check_clients(member)
        check_system_extras(member)
        check_scoring_extras(member)
    check_training_extras(config.training)


def check_clients(config: Config) -> None:
    """Raises UserError where a stage asks a server elsewhere, and cannot by what the environment says of proxies and
    certificates."""
    from ratchet.core.http.clients import check_client_environment, is_local  # late: the commands' help needs no client

    models = config.models.values()
    urls = [url for model in models for url in ((model.url,) if isinstance(model.url, str) else model.url or ())]
    urls += [source.url for source in config.sources.values() if isinstance(source, McpConfig)]
    urls += [config.embedder.url or "", "" if is_missing(config.index) else config.index.url or ""]
    searches = any(isinstance(source, SourceConfig) and source.mode == "live" for source in config.sources.values())
    if searches or any(url and not is_local(url) for url in urls):
        check_client_environment()
    elif not is_offline() and any(one.engine in ("local", "vllm") and not Path(one.path).is_dir() for one in models):
        check_environment()  # the hub's client takes what httpx does not


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
    for name in (*config.rewards.weights, *config.evaluation.scores):
        if config.embedder.engine == "local" and load_reward(name).needs_embedder:
            need_extra("dense", f"{name} without a server for its embedder")


def check_training_extras(training: TrainingConfig) -> None:
    """For training; `training.unsloth` looks for its own."""
    check_wandb(training.wandb)
