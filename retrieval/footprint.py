"""The GPU memory of what searches and compares texts on a GPU, computed from files: it shares the GPU with servers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.core.config import Config, DenseConfig, EncoderConfig, IndexConfig, is_missing
from ratchet.core.config.retrieval import ENCODERS
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
    index, encoders = config.index, list[tuple[str, EncoderConfig | DenseConfig]]()
    if not is_missing(index) and index.url is None and index.kind in ENCODERS:
        settings = _built_with(index) | (index.encoder.model_dump(exclude_unset=True) if index.encoder else {})
        with suppress(UserError):  # an index of another version, which no command opens
            encoders.append(("index.encoder", parse(ENCODERS[index.kind], settings, "index.encoder")))
    if config.embedder.engine == "local":
        encoders.append(("embedder", config.embedder))
    return [
        EncoderMemory(f"{key} {encoder.path}", encoder.device, parameters * DTYPE_BYTES[encoder.dtype] + WORK_BYTES)
        for key, encoder in encoders
        if encoder.device != "cpu" and encoder.path and (parameters := _parameters(encoder))
    ]


def _built_with(index: IndexConfig) -> dict[str, Any]:
    from ratchet.retrieval.layout import read_manifest

    try:
        return read_manifest(Path(index.path)).encoder
    except UserError:
        return {}


def _parameters(config: EncoderConfig | DenseConfig) -> int:
    """Count the parameters by config.json, with a vocabulary head where there is one; 0 where it is not here."""
    import torch
    from transformers import AutoConfig, AutoModel

    from ratchet.retrieval.encoders.dense import PACKAGED, model_folder

    try:
        folder = config.path
        if isinstance(config, DenseConfig) and folder in PACKAGED:
            folder = str(model_folder(DenseConfig(path=folder)))
        shape = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModel.from_config(shape, trust_remote_code=False)
    except Exception:  # the readers of damaged files raise anything; who loads the model says what is wrong with it
        return 0
    head = 0
    if isinstance(config, EncoderConfig) and not shape.tie_word_embeddings:
        head = shape.vocab_size * shape.hidden_size
    return sum(weight.numel() for weight in model.parameters()) + head
