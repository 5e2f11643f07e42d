"""Checks before hours of work: what only the plug-ins of a config know, and whether the packages, accounts and proxies
that it needs are there."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit

from ratchet.agents.core.system import load_system
from ratchet.core.config import (
    Config,
    IndexConfig,
    McpConfig,
    PluginConfig,
    RewardsConfig,
    SourceConfig,
    TrainingConfig,
    is_missing,
    load_members,
)
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.http.environment import check_environment, is_offline
from ratchet.core.installed import need_extra
from ratchet.core.plugins import is_path, short_name
from ratchet.questions.benchmark import load_benchmark
from ratchet.retrieval.sources.source import load_source
from ratchet.rewards.prompts import judge_prompts
from ratchet.rewards.reward import check_weights, load_reward
from ratchet.training.objectives.objective import load_objective


def check_plugins(config: Config) -> None:
    """Check what only the plug-ins know: a system's settings and roles, a benchmark's name and splits, the scores, the
    settings of a source, the objective."""
    for key, system in config.systems.items():
        load_system(system, key)
    named = {f"evaluation.benchmarks.{name}": split for name, split in config.evaluation.benchmarks.items()}
    if not is_missing(config.questions):
        named |= config.splits
    for key, split in named.items():
        if split.benchmark:
            try:
                load_benchmark(split.benchmark).split(split)
            except UserError as error:
                raise UserError(f"{key}.{error}") from error
    for name, source in config.sources.items():
        if isinstance(source, PluginConfig):
            load_source(name, source)
    _check_scores(config)
    load_objective(config.training)
    if config.training.conversations != "main":
        systems = {short_name(member.system.name) for member in load_members(config).values()}
        if "external" not in systems:
            raise UserError(
                "training.conversations: it chooses among a program's, and no system.name here is `external`"
            )
    if config.training.role_weights:
        _check_role_weights(config)


def _check_role_weights(config: Config) -> None:
    systems = [load_system(member.system) for member in load_members(config).values()]
    trained = {role for system in systems for role in system.roles if system.config.role(role).trainable}
    for role in config.training.role_weights:
        if role not in trained:
            names = ", ".join(sorted(trained))
            raise UserError(
                f"training.role_weights.{role}: no role of this name is trained (trained: {names})"
                f"{did_you_mean(role, trained)}"
            )


def _check_scores(config: Config) -> None:
    if config.rewards.prompts is not None:
        judge_prompts(config.rewards)
    weights, scores = config.rewards.weights, config.evaluation.scores
    found = [load_reward(name, "rewards.weights" + ("" if is_path(name) else f".{name}")) for name in weights]
    found += [load_reward(name, "evaluation.scores") for name in scores]
    for reward in found:
        reward.read_settings(config.rewards.settings_of(reward.name))
    check_weights(weights)
    judge = config.rewards.judge
    # Only where the file names a judge: a config that only builds an index, searches or asks needs none.
    named = judge != RewardsConfig().judge and any(reward.needs_judge for reward in found)
    if named and (problem := config.why_no_model("rewards.judge", judge)):
        raise UserError(problem)


def check_extras(config: Config) -> None:
    """Raise UserError where something is missing that a stage of self-training needs."""
    for member in load_members(config).values():
        check_clients(member)
        check_system_extras(member)
        check_scoring_extras(member)
    check_training_extras(config.training)


def check_clients(config: Config) -> None:
    """Raise UserError where a stage asks a server elsewhere, and cannot by the environment's proxies and
    certificates."""
    from ratchet.core.http.clients import is_local  # late: the commands' help needs no client

    models = config.models.values()
    urls = [url for model in models for url in ((model.url,) if isinstance(model.url, str) else model.url or ())]
    urls += [source.url for source in config.sources.values() if isinstance(source, McpConfig)]
    urls.append(config.embedder.url or "")
    for index in () if is_missing(config.index) else (config.index, *config.index.parts.values()):
        urls += [one.url or "" for one in (index, index.encoder, index.rerank) if one is not None]
    searches = any(isinstance(source, SourceConfig) and source.mode == "live" for source in config.sources.values())
    asks_hub = any(one.engine in ("local", "vllm") and not Path(one.path).is_dir() for one in models)
    if searches or any(url and not is_local(url) for url in urls) or (asks_hub and not is_offline()):
        check_environment()


def check_index_extras(index: IndexConfig) -> None:
    """Check the packages for building or opening an index."""
    if is_missing(index):
        return
    for part in index.built.values():
        if part.engine != "ratchet":
            need_extra(part.engine, f"index.engine: {part.engine}")
        if part.kind == "dense":
            need_extra("dense", "index.kind: dense")
    if any(one.rerank is not None and one.rerank.url is None for one in (index, *index.parts.values())):
        need_extra("dense", "index.rerank without a url")


def check_system_extras(config: Config) -> None:
    """Check the packages for asking the systems of a config."""
    check_index_extras(config.index)
    if any(isinstance(source, McpConfig) for source in config.sources.values()):
        need_extra("mcp", "a source with service: mcp")
    if any(system.name == "external" for system in config.systems.values()):
        need_extra("server", "system.name: external")


def check_scoring_extras(config: Config) -> None:
    """Check the packages for the rewards and measures of a config."""
    for name in (*config.rewards.weights, *config.evaluation.scores):
        if config.embedder.url is None and load_reward(name).needs_embedder:
            need_extra("dense", f"{name} without a server for its embedder")


def check_wandb(mode: str) -> None:
    """Raise UserError where the package, or with `online` the account's key, is not there; wandb itself would ask for
    the key, or fail, once the model is loaded. Nothing is sent."""
    if mode == "off":
        return
    need_extra("wandb", f"training.wandb={mode}")
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    has_key = any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))
    if mode == "online" and not has_key and not _is_logged_in(server):
        raise UserError(
            f"training.wandb=online needs the key of an account on {server}: run `wandb login`, set WANDB_API_KEY, or "
            "set training.wandb=offline, and upload the run later with `wandb sync`"
        )


def _is_logged_in(server: str) -> bool:
    try:
        return bool(netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(server).netloc))
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError):
        return False  # as wandb takes it


def check_training_extras(training: TrainingConfig) -> None:
    """Check the packages for training, and what is passed through to transformers and PEFT."""
    check_wandb(training.wandb)
    if training.arguments or training.lora.model_extra:
        from ratchet.training.lora import peft_settings  # late: these import torch
        from ratchet.training.trainer import check_arguments

        peft_settings(training.lora)
        check_arguments(training)
