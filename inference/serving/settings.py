"""How a model's servers are started: `models.*.serve` of a config."""

from __future__ import annotations

from pydantic import Field, field_validator

from ratchet.config import Config, Section
from ratchet.parsing import parse

OURS = {
    "model": "models.*.path",
    "served-model-name": "models.*.served_name",
    "revision": "models.*.revision",
    "dtype": "models.*.dtype",
    "max-model-len": "models.*.max_context",
    "tensor-parallel-size": "serve.tensor_parallel",
    "max-lora-rank": "serve.lora_rank",
    "max-loras": "serve.adapters",
    "kv-cache-memory-bytes": "serve.kv_gb",
    "host": "nothing: servers listen on loopback",
    "port": "nothing: a free one is taken",
    "api-key": "models.*.api_key_env",
    "trust-remote-code": "nothing: code that comes with a model is never run",
}
"""Flags of vLLM that other keys set, and which."""
SECRET_WORDS = {"KEY", "KEYS", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS"}


class ServeConfig(Section):
    python: str = ""
    """The Python that has vLLM; default: the one that runs Ratchet. Its build may need an environment of its own."""
    replicas: int = Field(1, gt=0)
    """Servers of this model, each with weights and a cache of its own."""
    tensor_parallel: int = Field(1, gt=0)
    """GPUs that one server is split over."""
    lora_rank: int | None = Field(None, ge=0)
    """Largest rank of an adapter; 0: no adapters. Default: training.lora.r for the model that is trained, else 0."""
    adapters: int = Field(2, gt=0)
    """Adapters that one batch can mix; others wait."""
    kv_gb: float | None = Field(None, gt=0)
    """Memory of a server for keys and values, in 10^9 bytes over all its GPUs; default: its share of what is free."""
    restarts: int = Field(3, ge=0)
    """How often a server that died is started again, over the life of the command."""
    ready_timeout: float = Field(900.0, gt=0)
    """Seconds from its start until a server answers; loading a large model from a network disk takes minutes."""
    arguments: dict[str, bool | int | float | str] = Field(default={})
    """Further flags of vLLM by name, such as {max-num-seqs: 128}; true and false give --flag and --no-flag."""
    environment: dict[str, str] = Field(default={})
    """Further environment variables of the server, such as {VLLM_LOGGING_LEVEL: DEBUG}."""

    @field_validator("arguments")
    @classmethod
    def _not_ours(cls, arguments: dict[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
        named = {name.lstrip("-").removeprefix("no-").replace("_", "-"): value for name, value in arguments.items()}
        for name in named:
            if name in OURS:
                raise ValueError(f"--{name} is set by {OURS[name]}")
        return {name.lstrip("-").replace("_", "-"): value for name, value in arguments.items()}

    @field_validator("environment")
    @classmethod
    def _no_secrets(cls, environment: dict[str, str]) -> dict[str, str]:
        for name in environment:
            if SECRET_WORDS & set(name.upper().split("_")):
                raise ValueError(f"{name} looks like a secret; set it in the environment of the command instead")
        return environment


def serve_config(config: Config, name: str) -> ServeConfig:
    """A model's, with the rank of its adapters filled in."""
    settings = parse(ServeConfig, config.models[name].serve, f"models.{name}.serve")
    if settings.lora_rank is not None:
        return settings
    return settings.model_copy(update={"lora_rank": config.training.lora.r if name == config.training.model else 0})
