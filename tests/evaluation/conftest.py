"""An experiment that several files evaluate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.helpers.adapter_folders import save_adapter
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.tiny_index import tiny_index

PEOPLE = ("Ada Pell", "Jory Fenn", "Mina Ostler", "Sanna Leith", "Ilse Varrow", "Tomas Quern")


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    """A baseline system on a scripted engine that knows half of the answers, and an adapter folder."""
    save_tiny_tokenizer(tmp_path / "model")
    tiny_index(tmp_path, [{"id": "d", "text": "The lighthouse is kept."}])
    questions = [
        {"id": f"q{i}", "text": f"Who keeps light {i}?", "answers": [name], "kind": "ab"[i % 2]}
        for i, name in enumerate(PEOPLE)
    ]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
    script = [{"match": f"light {i}?", "reply": PEOPLE[i]} for i in range(3)] + [{"default": "nobody"}]
    (tmp_path / "script.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in script))
    model = {"path": str(tmp_path / "model"), "engine": "scripted", "script": str(tmp_path / "script.jsonl")}
    split = {"path": str(tmp_path / "questions.jsonl")}
    config = {
        "run": str(tmp_path / "run"),
        "models": {"agent": model},
        "index": {"path": str(tmp_path / "index")},
        "questions": {"train": split, "dev": split, "test": split},
        "system": {"name": "no_retrieval"},
        "rewards": {"weights": {"f1": 1.0}},
        "evaluation": {
            "scores": ["em", "f1"],
            "baselines": {"plain": {"name": "no_retrieval", "settings": {"style": "brief"}}},
            "resamples": 200,
        },
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    save_adapter(tmp_path / "run" / "round-1" / "adapter")
    return path
