"""Imports every module of the installed wheel, and prints where its files are. Run by the environment's Python."""

import importlib
import importlib.util
import pkgutil
import sys

import ratchet

OPTIONAL = {
    "fastapi",
    "gguf",
    "jpype",
    "mcp",
    "pymilvus",
    "starlette",
    "unsloth",
    "uvicorn",
    "vllm",
}
OURS = {"agents", "sampling", "rewards", "questions", "retrieval", "training", "evaluation", "inference"}


def main() -> None:
    assert importlib.util.find_spec("sampling") is None, "the checkout is not importable"
    for module in pkgutil.walk_packages(ratchet.__path__, "ratchet."):
        if module.name.endswith("__main__") or ".http" in module.name:
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in OPTIONAL:
                raise
    assert not OURS & sys.modules.keys(), OURS & sys.modules.keys()
    print(*ratchet.__path__)


if __name__ == "__main__":
    main()
