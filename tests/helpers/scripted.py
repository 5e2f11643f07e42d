"""An experiment whose model is a script, of questions that a test writes: what tests of the tables need."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.configs import SPLITS, scripted_model, write_config
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.tiny_index import tiny_index


def scripted_experiment(
    folder: Path, script: Sequence[Mapping[str, Any]], splits: Mapping[str, Sequence[Mapping[str, Any]]], **more: Any
) -> Path:
    """The path of a config with the run folder/run, `script` (inference/scripted.py) as the model, the questions of
    `splits` for train, dev and test (test's where one is not given), and the sections of `more`."""
    save_tiny_tokenizer(folder / "model")
    tiny_index(folder, [{"id": "d", "title": "Velm", "text": "The harbour of Velm is deep, and Ada Pell keeps it."}])
    write_lines(folder / "script.jsonl", script)
    for name, rows in splits.items():
        write_lines(folder / f"{name}.jsonl", rows)
    own = {
        "models": {"agent": scripted_model(folder)},
        "questions": {name: split_of(folder, name if name in splits else "test") for name in SPLITS},
        "system": {"name": "no_retrieval"},
    }
    return write_config(folder, **{**own, **more})


def split_of(folder: Path, name: str) -> dict[str, str]:
    return {"path": str(folder / f"{name}.jsonl")}


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
