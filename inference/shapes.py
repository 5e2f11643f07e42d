"""The shapes of common models, so that a run is planned before any of its models is on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_QWEN3 = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
_QWEN25 = {"vocab_size": 152064, "tie_word_embeddings": False}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-4B": {
        **_QWEN3,
        "model_type": "qwen3",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen3-8B": {
        **_QWEN3,
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-14B": {
        **_QWEN3,
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen2.5-7B-Instruct": {
        **_QWEN25,
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    "Qwen/Qwen2.5-14B-Instruct": {
        **_QWEN25,
        "model_type": "qwen2",
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
    },
    "meta-llama/Llama-3.1-8B-Instruct": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
    "tiiuae/Falcon3-10B-Instruct": {
        "model_type": "llama",
        "hidden_size": 3072,
        "intermediate_size": 23040,
        "num_hidden_layers": 40,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 131072,
        "tie_word_embeddings": False,
    },
}
"""By name on the hub, what the model's config.json says of its shape."""


def read_shape(path: str, revision: str | None) -> Any:
    """The configuration of a local folder or hub name, whose weights are not needed. Of a model of `PUBLISHED` that is
    not on this machine it has the shape alone. What is wrong with the files raises whatever transformers raises."""
    from transformers import AutoConfig

    if path in PUBLISHED and revision is None and not Path(path).exists():
        try:
            return AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        except OSError:
            return AutoConfig.for_model(**PUBLISHED[path])
    return AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
