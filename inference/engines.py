"""Engines of a config, opened by name."""

from __future__ import annotations

from collections.abc import Mapping

from inference.addresses import addressed
from inference.engine import Engine
from ratchet.config import ModelConfig
from ratchet.errors import UserError, did_you_mean


def open_engine(model: ModelConfig, served: bool = False) -> Engine:
    """The engine of one model. Imports are late: a client of a server needs no torch.

    `served`: its servers are known to be up, so one that does not answer is waited for.
    """
    if model.engine == "local":
        from inference.local.engine import LocalEngine

        return LocalEngine(model)
    if model.engine == "scripted":
        from inference.scripted import ScriptedEngine

        return ScriptedEngine.from_config(model)
    if isinstance(model.url, tuple) and len(model.url) > 1:
        from inference.http.replicas import ReplicaEngine

        return ReplicaEngine(model, served=served)
    from inference.http.engine import HttpEngine

    if isinstance(model.url, tuple):
        model = model.model_copy(update={"url": model.url[0] if model.url else None})
    return HttpEngine(model, served=served)


def open_engines(models: Mapping[str, ModelConfig], names: set[str]) -> dict[str, Engine]:
    """The named models' engines; names with equal settings share one, so a model is loaded once."""
    opened: dict[str, Engine] = {}
    by_setting: dict[str, Engine] = {}
    for name in sorted(names):
        if name not in models:
            raise UserError(
                f"a role is played by the model {name!r}, which is not under models{did_you_mean(name, models)}"
            )
        model = addressed(name, models[name])
        setting = model.model_dump_json()
        if setting not in by_setting:
            # `python -m inference serve` has waited for its servers before it gave their addresses out.
            by_setting[setting] = open_engine(model, served=model.url != models[name].url)
        opened[name] = by_setting[setting]
    return opened


async def close_engines(engines: Mapping[str, Engine]) -> None:
    for engine in {id(e): e for e in engines.values()}.values():
        await engine.close()
