"""LoRA adapter folders in PEFT's format, identified by their content."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ratchet.errors import UserError

WEIGHTS = "adapter_model.safetensors"


def adapter_digest(folder: str | Path) -> str:
    """16 hexadecimal digits of an adapter's configuration and weights: a new version gets a new name."""
    digest = hashlib.sha256()
    for name in ("adapter_config.json", WEIGHTS):
        path = Path(folder) / name
        try:
            digest.update(path.read_bytes())
        except OSError as error:
            raise UserError(f"{path}: cannot read ({error.strerror}); is this a PEFT adapter folder?") from error
    return digest.hexdigest()[:16]
