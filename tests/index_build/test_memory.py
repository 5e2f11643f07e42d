"""Indexes that are larger than the memory that may be used to build them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.core.config import IndexConfig
from tests.helpers import build_limited
from tests.helpers.building import results, tree

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts what is needed on Linux only"),
]

MIB = 14
ROOT = Path(__file__).parents[2]


def run(**request: Any) -> None:
    """In a process that is given MIB more than what it has when it is warm."""
    command = [sys.executable, "-m", "tests.helpers.build_limited", json.dumps({"mib": MIB, **request})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_documents_are_indexed_in_less_memory_than_the_index_takes(tmp_path: Path) -> None:
    """One shard of long words: most of it is text, which passes through."""
    random = np.random.default_rng(0)
    letters = np.frombuffer(b"bdfgklmnprst", np.uint8)
    words = [bytes(letters[random.integers(0, 12, 40)]).decode() for _ in range(3000)]
    path = tmp_path / "documents.jsonl"
    with path.open("w") as file:
        for i in range(3000):
            text = " ".join(words[j] for j in (3000 * random.random(300) ** 3).astype(int))
            file.write(json.dumps({"id": f"d{i}", "text": text}) + "\n")
    limited, free = (IndexConfig(path=str(tmp_path / name), documents=(str(path),)) for name in ("limited", "free"))
    run(config=limited.model_dump(mode="json", exclude_defaults=True))
    build_limited.build(free)
    assert size_of(tmp_path / "limited") > 2 * (MIB << 20)
    assert tree(tmp_path / "limited") == tree(tmp_path / "free")
    queries = [" ".join(words[i : i + 4]) for i in range(0, 400, 40)]
    found = results(limited.path, queries, 50)
    assert found == results(free.path, queries, 50)
    assert all(len(each) == 50 for each in found)


def test_postings_are_sorted_in_less_memory_than_they_take(tmp_path: Path) -> None:
    chunks, terms = 60_000, 200
    run(folder=str(tmp_path / "limited"), chunks=chunks, terms=terms)
    build_limited.encoded(tmp_path / "free", chunks, terms)
    assert size_of(tmp_path / "limited") > 2 * (MIB << 20)
    assert tree(tmp_path / "limited") == tree(tmp_path / "free")
