"""Which code runs: what manifests, ledgers, adapters and reports state of it."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from ratchet.core.extras import DISTRIBUTION

_HERE = Path(__file__).resolve().parent


@cache
def code_version(folder: Path = _HERE) -> str | None:
    """The commit that runs, with '+changes' where the checkout has uncommitted ones; the version of an installed wheel;
    None elsewhere. `folder`: one of the checkout."""
    if not (_HERE.parent / "pyproject.toml").is_file():
        return f"wheel {version(DISTRIBUTION)}"
    try:
        commit, changes = (
            subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+changes" if changes else "")
