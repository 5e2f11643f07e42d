"""Compiles the kernels that build and search an index, unless that was done before: about 14 seconds of a core.

tests/conftest.py starts it where several processes share the tests. Each of them would compile the same at its first
index otherwise.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numba

from ratchet.numba_cache import CACHED


def main() -> None:
    """Leaves a file in the cache, whose folder is named after the kernels' sources."""
    done = Path(numba.config.CACHE_DIR) / "warm"
    if not CACHED or done.exists():
        return
    from tests.helpers.tiny_index import tiny_index  # late: it imports transformers

    with tempfile.TemporaryDirectory() as folder:
        tiny_index(Path(folder), [{"id": "a", "text": "harbour"}]).search("harbour", 1)
    done.touch()


if __name__ == "__main__":
    main()
