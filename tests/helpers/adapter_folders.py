"""Small adapter folders in PEFT's format: `from adapter_folders import save_adapter` works in any test."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Tensors = dict[str, np.ndarray[Any, Any]]


def adapter_tensors(b: float = 1.0) -> Tensors:
    """One layer of rank 2, from 4 numbers to 3; B is `b` everywhere."""
    return {"q.lora_A.weight": np.ones((2, 4), np.float32), "q.lora_B.weight": np.full((3, 2), b, np.float32)}


def save_adapter(folder: Path, b: float = 1.0, tensors: Tensors | None = None, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(adapter_tensors(b) if tensors is None else tensors, folder / "adapter_model.safetensors")
    return folder
