"""Compiles the kernels that build and search an index, unless that was done before: about 14 seconds of a core.

tests/conftest.py starts it where several processes share the tests. Each of them would compile the same at its first
index otherwise.
"""

import tempfile
from pathlib import Path

import numba

from ratchet.core.numba_cache import CACHED

DONE = Path(numba.config.CACHE_DIR) / "warm"
"""Is there once they were compiled. The folder is named after the kernels' sources."""


def main() -> None:
    """Compile them."""
    if not CACHED or DONE.exists():
        return
    from tests.helpers.tiny_index import tiny_index  # late: it imports transformers

    with tempfile.TemporaryDirectory() as folder:
        tiny_index(Path(folder), [{"id": "a", "text": "harbour"}]).search("harbour", 1)
    DONE.touch()


if __name__ == "__main__":
    main()
