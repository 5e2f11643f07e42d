"""`ratchet new KIND NAME`: write the file of docs/guides/extend.md, and say how a config names it."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

from ratchet.core.errors import UserError
from ratchet.core.files import write_atomic

ENTRIES = {
    "system": "system: {{name: {path}, roles: {{default: {{max_tokens: 128}}}}}}",
    "reward": "rewards: {{weights: {{{path}: 1}}}}",
    "objective": "training: {{objective: {path}}}",
    "benchmark": "evaluation: {{benchmarks: {{{name}: {{benchmark: {path}}}}}}}",
}
"""By kind, the part of a config that names the file."""


def new(options: argparse.Namespace) -> None:
    """Write the file; of a system also its test. No file is overwritten."""
    path = Path(options.name if options.name.endswith(".py") else f"{options.name}.py")
    if not path.stem.isidentifier():
        raise UserError(
            f"{path.name}: a module's name has letters, digits and underscores, such as my_{options.kind}.py"
        )
    texts = {path: _template(options.kind)}
    if options.kind == "system":
        test = path.with_name(f"test_{path.name}")
        texts[test] = _template("test_system").replace("system.py", path.name)
    for file in texts:
        if file.exists():
            raise UserError(f"{file} exists; give another name, or remove it")
    for file, text in texts.items():
        write_atomic(file, text)
        print(f"written to {file}")
    if options.kind == "system":
        print(f"test it without a model: pytest {test}")
    named = path if path.is_absolute() or path.parts[0] == ".." else f"./{path}"
    print(f"in a config: {ENTRIES[options.kind].format(path=named, name=path.stem)}")


def _template(name: str) -> str:
    return (files("ratchet.commands") / "templates" / f"{name}.py").read_text(encoding="utf-8")
