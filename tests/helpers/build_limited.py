"""Builds in a process that the system refuses private memory beyond a limit; run by test_memory.py.

Warmed up first: modules, compiled kernels and the tokenizer are the program's, and take as much for any index. What is
mapped from files is not counted: those pages are the system's to drop and to read again.
"""

import json
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ratchet.core.config import IndexConfig
from ratchet.index_build import postings
from ratchet.index_build.build import build_index
from ratchet.index_build.postings import SparsePostings
from ratchet.index_build.shard import FolderWriter
from ratchet.retrieval.encoders.vectors import WEIGHTS
from tests.helpers.tiny_index import write_documents

VOCABULARY = 20_000
ROWS = 500
"""Chunks of one call: their postings are made as they are needed."""


def limit_memory(mib: int) -> None:
    status = Path("/proc/self/status").read_text().splitlines()
    data = next(line for line in status if line.startswith("VmData:"))
    limit = (int(data.split()[1]) << 10) + (mib << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        np.ones(2 * mib << 20, np.uint8)  # what was freed before counts as used, and is there to use again
    except MemoryError:
        return
    raise SystemExit("the limit does not hold")


def word_tokenizer() -> Any:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def build(config: IndexConfig) -> None:
    build_index(config, word_tokenizer(), "words")


def encoded(folder: Path, chunks: int, terms: int) -> None:
    """The files of a shard of learned sparse vectors, with `terms` of a chunk drawn from all."""
    folder.mkdir()
    files = FolderWriter(folder)
    inner = SparsePostings(folder, VOCABULARY, WEIGHTS)
    for first in range(0, chunks, ROWS):
        random = np.random.default_rng(first)
        found = np.sort(
            random.integers(0, VOCABULARY // terms, (ROWS, terms)) + np.arange(terms) * (VOCABULARY // terms)
        )
        codes = random.integers(0x3C00, 0x4080, ROWS * terms).astype(np.uint16)
        inner.add(np.arange(ROWS + 1) * terms, found.astype(np.uint32).ravel(), codes)
    inner.write(files)
    files.finish()
    inner.close()


def main() -> None:
    request = json.loads(sys.argv[1])
    # Their defaults hold 50 and 170 MB, which only a far larger index is large beside.
    postings.BUFFER, postings.SLICE = 1 << 17, 1 << 18
    with tempfile.TemporaryDirectory() as name:
        path = write_documents(Path(name) / "d.jsonl", [{"id": "a", "text": "harbour " * 9}])
        build(IndexConfig(path=f"{name}/index", documents=(str(path),)))
        encoded(Path(name) / "encoded", ROWS, 2)
    limit_memory(request["mib"])
    if "config" in request:
        build(IndexConfig(**request["config"]))
    else:
        encoded(Path(request["folder"]), request["chunks"], request["terms"])


if __name__ == "__main__":
    main()
