"""Small indexes for tests, really built: `tiny_index(folder, [{"id": ..., "text": ...}])`."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ratchet.core.config import IndexConfig
from ratchet.index_build.build import build_index
from ratchet.retrieval.index import Index
from ratchet.retrieval.loader import open_folder
from tests.helpers.tiny import tiny_tokenizer

shared_tokenizer = cache(tiny_tokenizer)


def write_documents(path: Path, documents: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def index_config(folder: Path, documents: Iterable[Mapping[str, Any]], **settings: Any) -> IndexConfig:
    """The config of an index at folder/index over folder/documents.jsonl, which is written."""
    folder.mkdir(parents=True, exist_ok=True)
    path = write_documents(folder / "documents.jsonl", documents)
    return IndexConfig(path=str(folder / "index"), documents=(str(path),), **settings)


def tiny_index(folder: Path, documents: Iterable[Mapping[str, Any]], **settings: Any) -> Index:
    """Build an index under `folder` with the tiny tokenizer and open it."""
    config = index_config(folder, documents, **settings)
    build_index(config, shared_tokenizer(), "tiny")
    return open_folder(config.path)
