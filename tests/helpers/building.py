"""Shared by the tests of building: small corpora and configs, and what an index folder holds."""

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ratchet.core.config import IndexConfig
from ratchet.index_build.build import build_index
from ratchet.retrieval.index import Index
from ratchet.retrieval.layout import Manifest
from ratchet.retrieval.loader import open_folder
from tests.helpers import configs
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.tiny_index import shared_tokenizer

SMALL: dict[str, Any] = {"chunk_tokens": 40, "chunk_overlap": 10}
DOCUMENTS = [
    {"id": "d0", "text": "The harbour of Velm was built by Ada Torrin. " * 8, "title": "Velm"},
    {"id": "d1", "text": "Käse, 界 and 🙂 are sold in the harbour of Orsk. " * 8},
    {"id": "d2", "text": "A short one."},
]
WORDS = [f"{first}{second}" for first in "bdfgklmnprstvz" for second in ("aro", "elin", "ikt", "osh", "unda")]


def corpus(count: int, seed: int = 0, words: int = 30, name: str = "d") -> list[dict[str, str]]:
    """Documents of random words, some common, some rare."""
    chance = random.Random(seed)
    weights = [1 / (i + 1) for i in range(len(WORDS))]
    return [
        {"id": f"{name}{i}", "text": " ".join(chance.choices(WORDS, weights, k=chance.randint(1, 2 * words)))}
        for i in range(count)
    ]


def queries(count: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 6))) for _ in range(count)]


def build(config: IndexConfig, **options: Any) -> int:
    """Build what is missing; how many shards that were."""
    return build_index(config, shared_tokenizer(), "tiny", **options)[1]


def built(config: IndexConfig, **options: Any) -> Manifest:
    manifest = build_index(config, shared_tokenizer(), "tiny", **options)[0]
    assert manifest is not None
    return manifest


def with_sources(config: IndexConfig, *paths: Path) -> IndexConfig:
    return config.model_copy(update={"documents": (*config.documents, *map(str, paths))})


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of an index but for what is about this machine's clock; the plan without its sources' stamps."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
    files.pop("verified.json", None)
    files.pop(".lock", None)
    if "plan.json" in files:
        plan = json.loads(files["plan.json"])
        for source in plan["sources"]:
            del source["stamps"]
        files["plan.json"] = json.dumps(plan).encode()
    return files


def content(folder: Path) -> dict[str, bytes]:
    """What is searched: the files of the shards without the manifests, which name the sources."""
    return {name: data for name, data in tree(folder).items() if name.startswith("shards/") and ".json" not in name}


def results(index: Index | str | Path, texts: Iterable[str], k: int = 1000) -> list[list[tuple[str, float, str]]]:
    opened = index if isinstance(index, Index) else open_folder(index)
    return [[(p.id, p.score, p.text) for p in found] for found in opened.search_batch(list(texts), k)]


def write_config(folder: Path, documents: Iterable[Path], **index: Any) -> Path:
    """The config of an index at folder/index, as a user writes it."""
    return write_whole_config(folder, {"path": str(folder / "index"), "documents": list(map(str, documents)), **index})


def write_whole_config(folder: Path, index: Mapping[str, Any]) -> Path:
    save_tiny_tokenizer(folder / "model")
    return configs.write_config(folder, index=dict(index))
