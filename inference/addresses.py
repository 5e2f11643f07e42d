"""Where a model's servers are: in the config, or in the environment that `python -m inference serve` sets."""

from __future__ import annotations

import os
import re

from ratchet.config import ModelConfig


def url_variable(name: str) -> str:
    """The environment variable for the address of the model called `name` under `models`: RATCHET_URL_AGENT.

    Several addresses, of replicas, are separated by commas.
    """
    return "RATCHET_URL_" + re.sub(r"\W", "_", name).upper()


def addressed(name: str, model: ModelConfig) -> ModelConfig:
    """The model with its servers' addresses: the config's own, or else the environment's; unchanged without either."""
    found = os.environ.get(url_variable(name), "")
    if model.engine not in ("vllm", "openai") or model.url or not found:
        return model
    urls = tuple(url.strip() for url in found.split(",") if url.strip())
    return model.model_copy(update={"url": urls[0] if len(urls) == 1 else urls})


def needs_server(name: str, model: ModelConfig) -> bool:
    """Whether a command that asks this model has to be started under `python -m inference serve`."""
    return model.engine == "vllm" and not addressed(name, model).url
