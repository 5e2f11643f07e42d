"""Fixtures of the tests of whole runs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.records import content_key
from tests.helpers.pages import ROOT
from tests.helpers.wheel import Installed, install_wheel


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder for the environment, always the same one, which this process has for itself."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "ratchet" / f"wheel-of-tests-{content_key(str(ROOT))[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, place: Path) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    install_wheel(folder, place / "environment")
    work = folder / "work"
    work.mkdir()
    return Installed(place / "environment", work)
