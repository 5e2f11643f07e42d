"""A page in a real browser."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def dumped_dom(page: str, folder: Path, fragment: str = "") -> str:
    """The page's document after its scripts have run, as HTML; `fragment` is what stands in its address behind #."""
    path = folder / "report.html"
    path.write_text(page)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}"]
    return subprocess.run(
        [str(CHROMIUM), *options, "--dump-dom", path.as_uri() + (f"#{fragment}" if fragment else "")],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "HOME": str(folder)},
    ).stdout
