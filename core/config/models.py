"""The section `models`: language models and how they are run and served."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ratchet.core.config.section import PathText, Section
from ratchet.core.processor import computes_bfloat16

SET_BY_KEYS = {
    "model": "models.*.path",
    "served-model-name": "models.*.served_name",
    "revision": "models.*.revision",
    "dtype": "models.*.dtype",
    "max-model-len": "models.*.max_context",
    "host": "nothing: servers listen on loopback",
    "port": "nothing: a free one is taken",
    "api-key": "models.*.api_key_env",
    "trust-remote-code": "nothing: code that comes with a model is never run",
}
"""Flags of vLLM that other keys set, and which keys."""
LEFT_OUT = {
    "temperature": "sampling.temperature, evaluation.temperature and rewards.temperature",
    "top_p": "sampling.top_p",
    "max_completion_tokens": "system.roles.*.max_tokens",
}
"""Fields of a request for chat completions that `models.*.request` can leave out, and the keys that set them."""
REQUEST_SET_BY_KEYS = {
    "model": "models.*.path",
    "seed": "models.*.send_seed",
    "max_tokens": "system.roles.*.max_tokens",
    **dict.fromkeys(("messages", "response_format", "tools", "n", "stream", "logprobs"), "Ratchet itself"),
}
"""Fields that it cannot have, and what sets them."""
MAX_NUM_SEQS, TENSOR_PARALLEL, DATA_PARALLEL = "max-num-seqs", "tensor-parallel-size", "data-parallel-size"
"""vLLM's flags for the sequences of one batch of a copy of the model, the GPUs of a copy, and the copies."""
ENABLE_LORA, LORA_RANK, LORAS = ADAPTERS = ("enable-lora", "max-lora-rank", "max-loras")
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM accepts for --max-lora-rank."""
KV_BYTES = "kv-cache-memory-bytes"
NUMBERS = (MAX_NUM_SEQS, TENSOR_PARALLEL, DATA_PARALLEL, LORA_RANK, LORAS, KV_BYTES)
REDUCED = ("quantization", "kv-cache-dtype")
"""vLLM's flags for number formats that change a model's answers."""
DEFAULT_CONCURRENCY = 64
"""Requests in flight at a server of which nothing else is known."""


class ServeConfig(Section):
    """The vLLM servers that `ratchet models serve` starts."""

    python: PathText = ""
    """Python interpreter that has vLLM installed. Default: the one that runs Ratchet."""
    arguments: dict[str, bool | int | float | str] = Field(default={})
    """Flags of vLLM by name, such as `{max-num-seqs: 128}`; `true` and `false` become `--flag` and `--no-flag`. Flags
    that other keys set are refused. `tensor-parallel-size` splits the model over GPUs, and `data-parallel-size` serves
    copies. The model that is trained gets `enable-lora`, `max-lora-rank` for `training.lora.r`, and `max-loras: 2`, and
    refuses formats that change answers (`quantization: fp8`, `kv-cache-dtype: fp8`)."""

    merge: bool = Field(False, exclude_if=lambda merge: not merge)
    """From the second round on, sample with the adapter merged into the weights (`merged/` in the run folder), which
    vLLM serves faster. Every role of the model must be trained. Evaluations compare adapters and are served as ever."""

    @field_validator("arguments")
    @classmethod
    def _not_set_by_keys(cls, arguments: dict[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
        for name in (name.lstrip("-").removeprefix("no-").replace("_", "-") for name in arguments):
            if name in SET_BY_KEYS:
                raise ValueError(f"--{name} is set by {SET_BY_KEYS[name]}")
        named = {name.lstrip("-").replace("_", "-"): value for name, value in arguments.items()}
        for name in NUMBERS:
            if type(value := named.get(name, 1)) is not int or value < 1:
                raise ValueError(f"{name}: {value!r} is not a number from 1")
        return named

    @property
    def split(self) -> int:
        """The number of GPUs that one copy of the model is split over."""
        return int(self.arguments.get(TENSOR_PARALLEL, 1))

    @property
    def copies(self) -> int:
        """The number of copies of the model."""
        return int(self.arguments.get(DATA_PARALLEL, 1))


class ThoughtsConfig(Section):
    """The thoughts of a model before it answers."""

    enabled: bool | None = None
    """Turn thinking on or off, by the variable of the chat template. Default: the template's own."""
    budget: int | None = Field(None, gt=0)
    """Number of tokens after which the engine closes a thought, in the template's words. They count in `max_tokens`.
    Default: no limit of its own."""
    kept: bool | None = None
    """Show earlier thoughts to later turns. Default: as the chat template does."""


class ModelConfig(Section):
    """A language model and the engine that runs it."""

    path: PathText
    """Local folder, or the model's name on the Hugging Face hub or, for `chat-api`, at its service."""
    engine: Literal["local", "vllm", "chat-api", "scripted"] = "local"
    """`local`: this process. `vllm`: a vLLM server, by token ids. `chat-api`: a closed model at a service with OpenAI's
    chat API, recorded as text, which cannot be trained. `scripted`: replies from a file."""
    url: str | tuple[str, ...] | None = None
    """`vllm`, `chat-api`: address of the server, such as `http://127.0.0.1:8000/v1`. Of several addresses a hash of the
    question chooses one. Default: the server that `ratchet models serve` has started."""
    request: dict[str, Any] = Field(default={})
    """`chat-api`: fields of a request by the service's own names, such as `{reasoning_effort: low}`. `null` leaves one
    out: `temperature` and `top_p`, which reasoning models refuse, or `max_completion_tokens`, in place of which
    `max_tokens` is sent."""
    reasoning_tokens: int = Field(0, ge=0)
    """`chat-api`: new tokens for reasoning, on top of a role's `max_tokens`."""
    serve: ServeConfig = ServeConfig()
    """`vllm`: how `ratchet models serve` starts the servers."""
    served_name: str | None = None
    """The server's name for the model. Default: `path`."""
    api_key_env: str = "RATCHET_API_KEY"
    """Environment variable that holds the server's key."""
    revision: str | None = None
    """Revision of a model from the hub. Default: its main branch."""
    template: dict[str, bool | int | float | str] = Field(default={})
    """Variables of the model's chat template, such as `{enable_thinking: false}`."""
    thoughts: ThoughtsConfig = ThoughtsConfig()
    """How the model thinks. A role's own `thoughts` take precedence, key by key."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "bfloat16"
    """Number format of the weights and of the computation; with `local` on a CPU, of the linear layers' products alone.
    `auto`: `bfloat16`, or `float32` with `device: cpu` where the CPU has no instructions for bfloat16; a run resumes
    with that one alone. An adapter is always float32, and so is training on a CPU without such instructions."""
    device: str = "auto"
    """Device that runs the model. `auto`: CUDA where there is a GPU, else the CPU."""
    max_context: int = Field(32_000, gt=0)
    """Maximum number of prompt and new tokens of a conversation, which ends there; nothing is truncated silently.
    `chat-api`: 3 bytes of text count as a token."""
    batch: int = Field(64, gt=0)
    """`local`: number of sequences decoded at once."""
    workers: int | None = Field(None, gt=0)
    """`local`: number of threads that share `batch`, `cache_gb` and the cores. Default: one for each core up to four,
    and one on a GPU."""
    cache_gb: float = Field(4.0, gt=0)
    """`local`: maximum memory for keys and values, prefix cache included, in GB."""
    timeout: float = Field(600.0, gt=0)
    """`vllm`, `chat-api`: seconds that one request may take."""
    concurrency: int | None = Field(None, gt=0)
    """`vllm`, `chat-api`: maximum number of requests in flight at each server. Default: what a server that Ratchet
    starts has memory for, and 64 at others."""
    send_seed: bool = True
    """`vllm`, `chat-api`: send a seed with every request. It kills vLLM on a CPU with chunked prefill."""
    script: PathText | None = None
    """`scripted`: JSONL file of replies, for tests."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_dtype(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("dtype") != "auto":
            return given
        slow = given.get("device") == "cpu" and not computes_bfloat16()
        return {**given, "dtype": "float32" if slow else "bfloat16"}

    @model_validator(mode="after")
    def _chat_api_has_one_address(self) -> ModelConfig:
        if self.engine == "chat-api" and isinstance(self.url, tuple) and len(self.url) != 1:
            raise ValueError("url: engine chat-api takes one address; a service has no replicas of ours")
        if self.engine != "chat-api" and (self.request or self.reasoning_tokens):
            raise ValueError(f"request and reasoning_tokens are for engine chat-api, and engine is {self.engine}")
        for name, value in self.request.items():
            if name in REQUEST_SET_BY_KEYS:
                raise ValueError(f"request: {name} is set by {REQUEST_SET_BY_KEYS[name]}")
            if name in LEFT_OUT and value is not None:
                raise ValueError(f"request: {name} is set by {LEFT_OUT[name]}; null leaves it out")
        if self.engine == "chat-api" and self.thoughts != ThoughtsConfig():
            raise ValueError("thoughts: a closed model thinks as request: {reasoning_effort: ...} says; remove it")
        return self

    @property
    def max_in_flight(self) -> int:
        """Maximum number of requests in flight at each server."""
        return self.concurrency or DEFAULT_CONCURRENCY

    @property
    def reduced_formats(self) -> dict[str, Any]:
        """The number formats of the server that change its answers, by vLLM's names; empty where none is set."""
        arguments = self.serve.arguments
        return {flag.replace("-", "_"): arguments[flag] for flag in REDUCED if flag in arguments}
