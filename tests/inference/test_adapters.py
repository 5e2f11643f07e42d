"""An adapter's digest names what it does, not where it lies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.adapters import adapter_digest
from ratchet.errors import UserError


def adapter(folder: Path, weights: bytes = b"w", **config: object) -> str:
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 16, "lora_alpha": 16, "base_model_name_or_path": "models/a", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return adapter_digest(folder)


def test_the_digest_follows_weights_and_scale_and_not_paths(tmp_path: Path) -> None:
    one = adapter(tmp_path / "1")
    assert one == adapter(tmp_path / "2", base_model_name_or_path="/elsewhere/a", target_modules=["q", "k"])
    assert len({one, adapter(tmp_path / "3", weights=b"v"), adapter(tmp_path / "4", lora_alpha=32)}) == 3


def test_a_folder_that_is_no_adapter_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"adapter_config\.json: cannot read"):
        adapter_digest(tmp_path)
