"""Small configs: `write_config(folder, system={"name": "cot"})` writes folder/config.yaml and returns its path."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

SPLITS = ("train", "dev", "test")


def config_values(folder: Path, **sections: Any) -> dict[str, Any]:
    """A config by rules, whose model, index and questions are in the folder, whether they are there or not. `sections`
    stand in the place of its own; those that are None are left out."""
    values = {
        "run": str(folder / "run"),
        "models": {"agent": {"path": str(folder / "model")}},
        "index": {"path": str(folder / "index")},
        "questions": {split: {"path": str(folder / f"{split}.jsonl")} for split in SPLITS},
        "rewards": {"weights": {"f1": 1.0}},
        **sections,
    }
    return {name: section for name, section in values.items() if section is not None}


def write_config(folder: Path, **sections: Any) -> Path:
    """The path of that config."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config_values(folder, **sections), sort_keys=False))
    return path


def scripted_model(folder: Path) -> Mapping[str, str]:
    """The section of a model that folder/script.jsonl plays, with the tokenizer of folder/model."""
    return {"path": str(folder / "model"), "engine": "scripted", "script": str(folder / "script.jsonl")}
