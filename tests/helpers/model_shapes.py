"""The shapes of real models, as their public config.json give them: no weights, so folders of a few hundred bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

QWEN25_7B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
QWEN25_14B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
FALCON3_10B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 3072,
    "intermediate_size": 23040,
    "num_hidden_layers": 40,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 131072,
    "tie_word_embeddings": False,
}


def save_shape(folder: Path, shape: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    return str(folder)
