"""Builds in a process that the system refuses private memory beyond a limit; run by test_memory.py.

Warmed up first: modules, compiled kernels and the tokenizer are the program's, and take as much for any index. What is
mapped from files is not counted: those pages are the system's to drop and to read again.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from index_build import postings
from index_build.build import build_index
from ratchet.config import IndexConfig
from tests.helpers.tiny_index import write_documents


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


def main() -> None:
    request = json.loads(sys.argv[1])
    # Their defaults hold 50 and 170 MB, which only a far larger index is large beside.
    postings.BUFFER, postings.SLICE = 1 << 17, 1 << 18
    with tempfile.TemporaryDirectory() as name:
        path = write_documents(Path(name) / "d.jsonl", [{"id": "a", "text": "harbour " * 9}])
        build(IndexConfig(path=f"{name}/index", documents=(str(path),)))
    limit_memory(request["mib"])
    build(IndexConfig(**request["config"]))


if __name__ == "__main__":
    main()
