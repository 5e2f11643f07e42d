"""LoRA adapter folders in PEFT's format, identified by their content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ratchet.errors import UserError

WEIGHTS = "adapter_model.safetensors"
EFFECTIVE = ("peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "bias")
"""What the configuration adds to the weights. The rest (the base model's path, PEFT's version) changes no output."""


def adapter_digest(folder: str | Path) -> str:
    """16 hexadecimal digits of what an adapter does: a new version gets a new name, a moved folder keeps its own."""
    digest = hashlib.sha256()
    path = Path(folder) / "adapter_config.json"
    try:
        config = json.loads(path.read_bytes())
        digest.update(json.dumps({key: config.get(key) for key in EFFECTIVE}, sort_keys=True).encode())
        path = Path(folder) / WEIGHTS
        digest.update(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror}); is this a PEFT adapter folder?") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); is this a PEFT adapter folder?") from error
    return digest.hexdigest()[:16]


def load_request(folder: str | Path) -> dict[str, str]:
    """Has a server load this adapter under a name of its content: a reused one would meet a stale prefix cache."""
    return {"lora_name": f"ratchet-{adapter_digest(folder)}", "lora_path": str(Path(folder).resolve())}


def adapter_rank(folder: str | Path) -> int:
    """The largest rank of its layers."""
    path = Path(folder) / "adapter_config.json"
    try:
        config = json.loads(path.read_bytes())
        return max(int(rank) for rank in [config["r"], *(config.get("rank_pattern") or {}).values()])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: no rank can be read ({error}); is this a PEFT adapter folder?") from error
