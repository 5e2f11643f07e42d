"""Compiles the kernels that build and search an index, unless that was done before: about 14 seconds of a core.

tests/conftest.py starts it where several processes share the tests. Each of them would compile the same at its first
index otherwise.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numba
from numba.core import event

from ratchet.core.numba_cache import CACHED

DONE = Path(numba.config.CACHE_DIR) / "warm"
"""Names what was compiled, a function with its types a line. The folder is named after the kernels' sources."""


class Compiled(event.Listener):
    """Notes each function that is compiled, with its types."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_start(self, started: Any) -> None:
        self.lines.append(f"{started.data['dispatcher'].py_func.__qualname__} {started.data['args']}\n")

    def on_end(self, ended: Any) -> None:
        pass


def main() -> None:
    """Compile them, and say in DONE what that was."""
    if not CACHED or DONE.exists():
        return
    from tests.helpers.tiny_index import tiny_index  # late: it imports transformers

    compiled = Compiled()
    with event.install_listener("numba:compile", compiled), tempfile.TemporaryDirectory() as folder:
        tiny_index(Path(folder), [{"id": "a", "text": "harbour"}]).search("harbour", 1)
    DONE.write_text("".join(compiled.lines))


if __name__ == "__main__":
    main()
