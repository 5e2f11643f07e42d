"""The GPU memory of what searches and compares texts on a GPU, computed from files: it shares the GPU with servers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.core.config import Config, EncoderConfig, IndexConfig, is_missing
from ratchet.core.errors import UserError
from ratchet.core.parsing import parse
from ratchet.inference.footprint import DTYPE_BYTES

WORK_BYTES = 1_000_000_000
"""The working memory of one encoder: a layer of 1B parameters (8,192 wide inside) on 16,384 tokens takes 0.8 GB, and
the logits of 1,024 tokens over 128,000 words 0.26 GB."""


@dataclass(frozen=True)
class EncoderMemory:
    """The GPU memory of one encoder, in the process that searches."""

    key: str
    """The config's key, and the path."""
    device: str
    """As the config names it: auto, cuda or cuda:1."""
    size: int
    """Bytes."""


def encoder_memory(config: Config) -> list[EncoderMemory]:
    """Return what a command of the config may load on a GPU besides language models. A model whose files are not on
    this machine is left out."""
    index, encoders = config.index, list[tuple[str, bool, EncoderConfig]]()
    if not is_missing(index) and index.url is None and index.kind != "bm25":
        settings = _built_with(index) | (index.encoder.model_dump(exclude_unset=True) if index.encoder else {})
        with suppress(UserError):  # an index of another version, which no command opens
            encoders.append(("index.encoder", index.kind == "sparse", parse(EncoderConfig, settings, "index.encoder")))
    if config.embedder.url is None:
        encoders.append(("embedder", False, config.embedder))
    return [
        EncoderMemory(
            f"{key} {encoder.path}",
            encoder.device,
            parameters * DTYPE_BYTES[encoder.dtype or ("bfloat16" if sparse else "float32")] + WORK_BYTES,
        )
        for key, sparse, encoder in encoders
        if encoder.device != "cpu" and encoder.path and (parameters := _parameters(encoder, sparse))
    ]


def _built_with(index: IndexConfig) -> dict[str, Any]:
    from ratchet.retrieval.layout import read_manifest

    try:
        return read_manifest(Path(index.path)).encoder
    except UserError:
        return {}


def _parameters(config: EncoderConfig, sparse: bool) -> int:
    """Count the parameters by config.json, with a vocabulary head where there is one; 0 where it is not here."""
    import torch
    from transformers import AutoConfig, AutoModel

    from ratchet.retrieval.encoders.dense import PACKAGED, model_folder

    try:
        folder = config.path
        if not sparse and folder in PACKAGED:
            folder = str(model_folder(EncoderConfig(path=folder)))
        shape = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModel.from_config(shape, trust_remote_code=False)
    except Exception:  # the readers of damaged files raise anything; who loads the model says what is wrong with it
        return 0
    head = 0
    if sparse and not shape.tie_word_embeddings:
        head = shape.vocab_size * shape.hidden_size
    return sum(weight.numel() for weight in model.parameters()) + head
