"""Engines of a config, opened by name, and the addresses of their servers.

An address is in the config, or in the environment that `ratchet models serve` sets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError, did_you_mean
from ratchet.inference.engine import Engine


def open_engine(model: ModelConfig, served: bool = False, merged: str = "") -> Engine:
    """Open the engine of one model. Imports are late: a client of a server needs no torch.

    `served`: its servers are known to be up, so the client waits for one that does not answer. `merged`: the digest of
    the adapter that is merged into the weights that they serve.
    """
    if model.engine == "local":
        from ratchet.inference.local.engine import LocalEngine

        return LocalEngine(model)
    if model.engine == "scripted":
        from ratchet.inference.scripted import ScriptedEngine

        return ScriptedEngine.from_config(model)
    if model.engine == "chat-api":
        from ratchet.inference.http.chat_api import ChatApiEngine

        return ChatApiEngine(model)
    from ratchet.inference.http.vllm import HttpEngine, ReplicaEngine

    if isinstance(model.url, tuple) and len(model.url) > 1:
        return ReplicaEngine(model, served=served, merged=merged)
    if isinstance(model.url, tuple):
        model = model.model_copy(update={"url": model.url[0] if model.url else None})
    return HttpEngine(model, served=served, merged=merged)


def open_engines(models: Mapping[str, ModelConfig], names: set[str]) -> dict[str, Engine]:
    """The named models' engines; names with equal settings share one, so a model is loaded once."""
    opened: dict[str, Engine] = {}
    by_setting: dict[str, Engine] = {}
    for name in sorted(names):
        if name not in models:
            raise UserError(
                f"the config uses the model {name!r}, which is not under models{did_you_mean(name, models)}"
            )
        model = addressed(name, models[name])
        merged = os.environ.get(merged_variable(name), "")
        setting = model.model_dump_json() + merged
        if setting not in by_setting:
            # `ratchet models serve` sets the addresses once its servers are ready.
            by_setting[setting] = open_engine(model, model.url != models[name].url, merged)
        opened[name] = by_setting[setting]
    return opened


async def close_engines(engines: Mapping[str, Engine]) -> None:
    """Close every engine once, also where several names share it."""
    for engine in {id(e): e for e in engines.values()}.values():
        await engine.close()


def url_variable(name: str) -> str:
    """Return the environment variable for the addresses of the model `name`, separated by commas: RATCHET_URL_AGENT."""
    return _variable("URL", name)


def concurrency_variable(name: str) -> str:
    """Return the environment variable for the requests that each server of a model can hold:
    RATCHET_CONCURRENCY_AGENT."""
    return _variable("CONCURRENCY", name)


def merged_variable(name: str) -> str:
    """Return the environment variable for the digest of the adapter that is merged into the weights that the servers of
    a model hold: RATCHET_MERGED_AGENT."""
    return _variable("MERGED", name)


def _variable(what: str, name: str) -> str:
    return f"RATCHET_{what}_" + re.sub(r"\W", "_", name).upper()


def addressed(name: str, model: ModelConfig) -> ModelConfig:
    """Return the model with its servers' addresses: the config's own, or else the environment's; unchanged without
    either.

    With an address of the environment comes what the server can hold, where the config has no `concurrency`.
    """
    found = os.environ.get(url_variable(name), "")
    if model.engine not in ("vllm", "chat-api") or model.url or not found:
        return model
    urls = tuple(url.strip() for url in found.split(",") if url.strip())
    held = os.environ.get(concurrency_variable(name), "")
    concurrency = model.concurrency or (int(held) if held.isdecimal() and int(held) else None)
    return model.model_copy(update={"url": urls[0] if len(urls) == 1 else urls, "concurrency": concurrency})


def max_requests(name: str, model: ModelConfig) -> int:
    """Return the requests that all servers of a model take at once, or the sequences that this process decodes at
    once."""
    model = addressed(name, model)
    if model.engine == "local":
        return min(model.batch, model.concurrency or model.batch)
    return model.max_in_flight * (len(model.url) if isinstance(model.url, tuple) else 1)


def needs_server(name: str, model: ModelConfig) -> bool:
    """Return whether a command that uses this model must run under `ratchet models serve`."""
    return model.engine == "vllm" and not addressed(name, model).url
