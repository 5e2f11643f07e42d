"""Whether a server really uses an adapter that it says it has loaded.

Seen in the field: adapters that a server lists and ignores, and outputs of an older version out of a prefix cache. So
the adapter must be listed, and with one fixed prompt its greedy tokens and their log-probabilities must differ from the
base model's. Only an adapter whose every B is zero, as before its first training step, may equal it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize

from inference.adapters import WEIGHTS
from ratchet.errors import UserError

Ask = Callable[[str, dict[str, Any] | None], Awaitable[Any]]
"""(path under /v1, body of a POST or None for a GET) to the decoded JSON of a successful answer."""

PROMPT = "The first thing to know is"
"""Short: less than one block of a prefix cache, so that asking twice computes it twice."""
NEW_TOKENS = 8


async def check_adapter(folder: str, name: str, base: str, ask: Ask) -> None:
    """UserError if the server does not list the adapter `name`, or answers under it as it does under `base`.

    What `ask` raises passes through.
    """
    listed = await ask("models", None)
    names = [model.get("id") for model in listed.get("data", []) if isinstance(model, dict)]
    if name not in names:
        raise UserError(f"{folder}: the server took this adapter but does not list it as {name}; it lists {names}")
    if not await asyncio.to_thread(changes_output, folder):
        return
    # The base on both sides: a server whose rounding changes from request to request is not taken for a working one
    # as easily.
    before = await _greedy(base, ask)
    under = await _greedy(name, ask)
    if under == before or under == await _greedy(base, ask):
        raise UserError(
            f"{folder}: with this adapter the server answers a fixed prompt exactly as the base model {base} does, "
            f"log-probabilities included: it ignores the adapter, or has a stale one under the name {name}; restart "
            "the server, and see whether it supports the adapter's target modules"
        )


def changes_output(folder: str | Path) -> bool:
    """Whether any B of the adapter is not zero."""
    path = Path(folder) / WEIGHTS
    try:
        tensors = deserialize(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror}); is this a PEFT adapter folder?") from error
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error}); the adapter is damaged: make it again") from error
    # Zero is all zero bytes in every float type, so no library of tensors is needed.
    return any(tensor["data"].strip(b"\0") for key, tensor in tensors if "lora_B" in key or "lora_embedding_B" in key)


async def _greedy(model: str, ask: Ask) -> tuple[list[str], list[float | None]]:
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": NEW_TOKENS,
        "temperature": 0,
        "repetition_penalty": 1.0,
        "logprobs": 0,
    }
    logprobs = (await ask("completions", body))["choices"][0]["logprobs"]
    return logprobs["tokens"], logprobs["token_logprobs"]
