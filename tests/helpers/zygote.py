"""Work in forked processes that are killed at a chosen moment or file operation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.config import IndexConfig

ROOT = Path(__file__).parents[2]


class Zygote:
    """Builds in forked processes that are killed; see build_zygote.py."""

    def __init__(self, *modules: str) -> None:
        command = [sys.executable, "-m", "tests.helpers.build_zygote", *modules]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._read() == "ready"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def build(self, config: IndexConfig, when: str | float, **options: Any) -> tuple[int, int, int]:
        """(signal that ended it or 0, steps, process id)."""
        return self.run({"config": config.model_dump(mode="json", exclude_defaults=True), **options}, when)

    def run(self, request: Mapping[str, Any], when: str | float) -> tuple[int, int, int]:
        """The same of any request that build_zygote.py takes."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{when}\t{json.dumps(request)}\n")
        self._process.stdin.flush()
        status, steps, process = map(int, self._read().split())
        assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the build failed"
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, steps, process

    def close(self) -> None:
        self._process.communicate(timeout=120)  # a busy machine
