"""Which servers a config needs, and the command and environment that start each: pure functions."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ratchet.core.config import Config, ModelConfig, ServeConfig, ThoughtsConfig, written
from ratchet.core.config.models import DEFAULT_CONCURRENCY, ENABLE_LORA, KV_BYTES, LORA_RANK, MAX_NUM_SEQS
from ratchet.core.errors import UserError, did_you_mean
from ratchet.inference.engines import needs_server

GB = 10**9


@dataclass(frozen=True)
class ModelUse:
    """A model's use, as far as that decides on memory and on requests in flight."""

    calls: float = 1.0
    """Calls of one trajectory, or of the scoring of one; only their ratio between models matters."""
    conversation_tokens: int = 0
    """Tokens of a conversation at its end; 0: a quarter of the model's context."""
    is_measured: bool = False
    """True if a run has measured them."""


@dataclass(frozen=True)
class ServerSpec:
    """One model to be served, under all its names in the config."""

    names: tuple[str, ...]
    model: ModelConfig
    settings: ServeConfig
    concurrency: int | None = None
    """The limit of requests in flight at one server, of all names together; None: as many as it can hold."""
    calls: float = 1.0
    """See `ModelUse.calls`; of all names together."""
    conversation_tokens: int = 0
    """See `ModelUse.conversation_tokens`."""
    is_measured: bool = False

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def served_name(self) -> str:
        return self.model.served_name or written(self.model.path)

    @property
    def tokens(self) -> int:
        """Tokens that one request holds in the cache."""
        return min(self.conversation_tokens or self.model.max_context // 4, self.model.max_context) or 1

    @property
    def lora_rank(self) -> int:
        """The largest rank of an adapter; 0: no adapters."""
        arguments = self.settings.arguments
        return int(arguments.get(LORA_RANK, 16)) if arguments.get(ENABLE_LORA) else 0  # 16 is vLLM's default


@dataclass(frozen=True)
class Placement:
    """Where the server of a model runs, and the memory it may use."""

    gpus: tuple[str, ...] = ()
    """Names of GPUs as in CUDA_VISIBLE_DEVICES; empty: the server runs on the CPU."""
    fraction: float = 0.0
    """The part of each GPU's total memory that the server may use."""
    kv_bytes: int = 0
    """Bytes for keys and values, on all of its GPUs or the CPU together."""
    concurrency: int = DEFAULT_CONCURRENCY
    """Requests in flight at each copy of the model."""


def server_specs(
    config: Config, names: Iterable[str] | None, uses: Mapping[str, ModelUse] | None = None
) -> list[ServerSpec]:
    """Return the servers of the named models, or of all models that need one. Equal models share a server. Raises
    UserError."""
    models = config.models
    chosen = list(models) if names is None else list(dict.fromkeys(names))
    groups: dict[str, ServerSpec] = {}
    for name in chosen:
        if name not in models:
            raise UserError(f"--models {name}: not under models{did_you_mean(name, models)}")
        model = models[name]
        if names is not None and (model.engine != "vllm" or model.url):
            why = f"it has the url {model.url}" if model.url else f"its engine is {model.engine}, not vllm"
            raise UserError(f"--models {name}: it needs no server: {why}")
        if not needs_server(name, model):
            continue  # its address is in the environment: this command runs inside another `serve`
        settings = config.serve_config(name)
        same = model.model_copy(
            update={"timeout": 1.0, "concurrency": None, "batch": 1, "cache_gb": 1.0, "serve": ServeConfig()}
            | {"template": {}, "thoughts": ThoughtsConfig()}  # prompts are rendered by the client
        )
        key = same.model_dump_json() + settings.model_dump_json()
        use, before = (uses or {}).get(name, ModelUse()), groups.get(key)
        spec = ServerSpec(
            (name,), model, settings, model.concurrency, use.calls, use.conversation_tokens, use.is_measured
        )
        groups[key] = _merge(before, spec) if before else spec
    return list(groups.values())


def _merge(first: ServerSpec, second: ServerSpec) -> ServerSpec:
    limits = (first.concurrency, second.concurrency)
    return replace(
        first,
        names=(*first.names, *second.names),
        concurrency=None if None in limits else sum(filter(None, limits)),
        calls=first.calls + second.calls,
        conversation_tokens=max(first.tokens, second.tokens),
        is_measured=first.is_measured and second.is_measured,
    )


def server_command(spec: ServerSpec, placement: Placement, port: int | str) -> list[str]:
    """Return the command of one server. Flags as vLLM 0.32 has them (engine/arg_utils.py); the key is not among
    them."""
    model, settings = spec.model, spec.settings
    # `vllm serve` and its module need a distribution named vllm, which builds under another name are not. This module
    # is deprecated; the upper bound of the extra is a version that still has it.
    command = [settings.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", model.path, "--served-model-name", spec.served_name]
    if model.revision:
        command += ["--revision", model.revision, "--tokenizer-revision", model.revision]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", model.dtype, "--max-model-len", str(model.max_context)]
    # Requests carry all sampling settings; the model's generation_config.json must not change them.
    command += ["--generation-config", "vllm", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    # The only way to keep a model from filling an answer with white space: vLLM ignores the setting in a request.
    command += ["--structured-outputs-config.backend", "xgrammar"]
    command += ["--structured-outputs-config.disable_any_whitespace", "true"]
    if MAX_NUM_SEQS not in settings.arguments:
        command += [f"--{MAX_NUM_SEQS}", str(placement.concurrency)]
    if placement.gpus:
        command += ["--gpu-memory-utilization", f"{placement.fraction:.3f}"]
    else:
        command.append("--enforce-eager")
        if KV_BYTES not in settings.arguments:
            command += [f"--{KV_BYTES}", str(placement.kv_bytes)]
        if model.send_seed:
            # A seeded request whose prompt is prefilled in chunks crashes vLLM's engine for CPUs.
            command += ["--no-enable-chunked-prefill"]
    for name, value in settings.arguments.items():
        if isinstance(value, bool):
            command.append(f"--{name}" if value else f"--no-{name}")
        else:
            command += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return command


def server_environment(spec: ServerSpec, placement: Placement) -> dict[str, str]:
    """Return the variables that are added to the environment of one server, except its key."""
    added = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if spec.lora_rank:
        added["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if placement.gpus:
        added["CUDA_VISIBLE_DEVICES"] = ",".join(placement.gpus)
    return added
