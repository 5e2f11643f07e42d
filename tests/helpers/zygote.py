"""Work in forked processes that are killed at a chosen moment or file operation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from ratchet.config import IndexConfig
from tests.helpers.experiment import ROOT, environment, preloaded


class Zygote:
    """Builds in forked processes that are killed; see build_zygote.py."""

    def __init__(self, *, torch: bool = False) -> None:
        """`torch`: it has the heavy libraries loaded as well, which makes each fork take twice as long."""
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "helpers" / "build_zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=preloaded(PYTHONPATH=str(ROOT)) if torch else environment() | {"PYTHONPATH": str(ROOT)},
        )
        self._loaded: set[str] = set()
        self.idle = self._read() == "ready"
        """Whether it waits for work: not while it works, nor where a test did not wait for the answer."""
        assert self.idle

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self.idle
        self.idle = False
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._read()
        self.idle = bool(answer)
        return answer

    def load(self, *modules: str) -> None:
        """Import modules that the work needs, before it is forked."""
        for module in modules:
            if module not in self._loaded:
                assert self._ask(f"load\t{json.dumps(module)}") == "ready"
                self._loaded.add(module)

    def build(self, config: IndexConfig, when: str | float, **options: Any) -> tuple[int, int, int]:
        """(signal that ended it or 0, steps, process id)."""
        return self.run({"config": config.model_dump(mode="json", exclude_defaults=True), **options}, when)

    def run(self, request: Mapping[str, Any], when: str | float) -> tuple[int, int, int]:
        """The same of any request that build_zygote.py takes."""
        status, steps, process = map(int, self._ask(f"{when}\t{json.dumps(request)}").split())
        assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the build failed"
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, steps, process

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=120)  # a busy machine


_new_zygote = cache(Zygote)


def shared_zygote(*modules: str) -> Zygote:
    """The one of this process, with these modules loaded. It ends with this process, which its standard input tells."""
    if not _new_zygote().idle:
        _new_zygote.cache_clear()
    zygote = _new_zygote()
    zygote.load(*modules)
    return zygote
