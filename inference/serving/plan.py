"""Which servers a config wants, and the command and environment that start each: pure functions."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from inference.addresses import needs_server
from inference.serving.settings import ServeConfig, serve_config
from ratchet.config import Config, ModelConfig
from ratchet.errors import UserError, did_you_mean

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as --max-lora-rank."""
GB = 10**9


@dataclass(frozen=True)
class Serving:
    """One model to be served, under all its names in the config."""

    names: tuple[str, ...]
    model: ModelConfig
    settings: ServeConfig
    concurrency: int
    """Requests in flight at once, of all names together."""

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def served_name(self) -> str:
        return self.model.served_name or self.model.path

    @property
    def lora_rank(self) -> int:
        """As vLLM takes it; 0: no adapters."""
        rank = self.settings.lora_rank or 0
        return next((known for known in RANKS if known >= rank), rank) if rank else 0


@dataclass(frozen=True)
class Place:
    """Where one server of a model runs, and how much of that is its own."""

    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them; none: on the CPU."""
    fraction: float = 0.0
    """Of each GPU's whole memory."""
    kv_bytes: int = 0
    """On the CPU."""


def servings(config: Config, names: Iterable[str] | None) -> list[Serving]:
    """What is to be served: the named models, or all that want a server. Equal models share one."""
    chosen = list(config.models) if names is None else list(dict.fromkeys(names))
    groups: dict[str, Serving] = {}
    for name in chosen:
        if name not in config.models:
            raise UserError(f"--models {name}: not under models{did_you_mean(name, config.models)}")
        model = config.models[name]
        if names is not None and (model.engine != "vllm" or model.url):
            why = f"it has the url {model.url}" if model.url else f"its engine is {model.engine}, not vllm"
            raise UserError(f"--models {name}: nothing to serve, {why}")
        if not needs_server(name, model):
            continue  # the environment says where it is: this command runs inside another of its kind
        settings = serve_config(config, name)
        same = model.model_copy(update={"timeout": 1.0, "concurrency": 1, "batch": 1, "cache_gb": 1.0, "serve": {}})
        key = same.model_dump_json() + settings.model_dump_json()
        before = groups.get(key)
        groups[key] = Serving(
            names=(*before.names, name) if before else (name,),
            model=model,
            settings=settings,
            concurrency=model.concurrency + (before.concurrency if before else 0),
        )
    return list(groups.values())


def server_command(serving: Serving, place: Place, port: int | str) -> list[str]:
    """The command of one server. Flags as vLLM 0.32 has them (engine/arg_utils.py); the key is not among them."""
    model, settings = serving.model, serving.settings
    # Not the `vllm` command, which builds under another name do not have.
    command = [settings.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", model.path, "--served-model-name", serving.served_name]
    if model.revision:
        command += ["--revision", model.revision, "--tokenizer-revision", model.revision]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", model.dtype, "--max-model-len", str(model.max_context)]
    # Requests say themselves how to sample; a model's generation_config.json shall not.
    command += ["--generation-config", "vllm", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    # The only way to keep a model from filling an answer with blanks: vLLM ignores the setting in a request.
    command += ["--structured-outputs-config.backend", "xgrammar"]
    command += ["--structured-outputs-config.disable_any_whitespace", "true"]
    if serving.lora_rank:
        command += ["--enable-lora", "--max-lora-rank", str(serving.lora_rank), "--max-loras", str(settings.adapters)]
    if settings.tensor_parallel > 1:
        command += ["--tensor-parallel-size", str(settings.tensor_parallel)]
    if place.gpus:
        command += ["--gpu-memory-utilization", f"{place.fraction:.3f}"]
    else:
        command += ["--enforce-eager", "--kv-cache-memory-bytes", str(place.kv_bytes)]
        if model.send_seed:
            # A seeded request whose prompt is read in pieces ends vLLM's engine for CPUs.
            command += ["--no-enable-chunked-prefill"]
    for name, value in settings.arguments.items():
        if isinstance(value, bool):
            command.append(f"--{name}" if value else f"--no-{name}")
        else:
            command += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return command


def server_environment(serving: Serving, place: Place) -> dict[str, str]:
    """What is added to the environment of one server, but for its key."""
    added = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if serving.lora_rank:
        added["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if place.gpus:
        added["CUDA_VISIBLE_DEVICES"] = ",".join(place.gpus)
    return added | serving.settings.environment
