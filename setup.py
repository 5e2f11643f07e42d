"""The wheel: every package of the project below `ratchet`, since other projects have an `agents` and a `commands` too.

A checkout and an editable install keep the packages side by side (pyproject.toml). For a wheel, `BuildBelowRatchet`
moves them and rewrites their import statements; strings that name modules go through ratchet/packages.py.
"""

from __future__ import annotations

import ast
import importlib.util
import shutil
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("packages", HERE / "ratchet" / "packages.py")
assert _spec is not None and _spec.loader is not None
packages: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(packages)
OURS = (*packages.PACKAGES, *packages.SCRIPTS)


def rewrite_imports(source: str) -> str:
    """The module with its imports of our packages below `ratchet`; every other byte stays."""
    lines = source.encode().split(b"\n")  # as ast counts lines; its columns are bytes
    for node in sorted(ast.walk(ast.parse(source)), key=lambda node: -getattr(node, "lineno", 0)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_ours(node.module or ""):
            start = lines[node.lineno - 1]
            at = start.index(b" ", node.col_offset) + 1  # behind `from`, whatever the names are
            at += len(start[at:]) - len(start[at:].lstrip())
            lines[node.lineno - 1] = start[:at] + b"ratchet." + start[at:]
        elif isinstance(node, ast.Import) and any(_is_ours(alias.name) for alias in node.names):
            assert node.end_lineno == node.lineno and node.end_col_offset is not None, "an import over several lines"
            line = lines[node.lineno - 1]
            text = "; ".join(_import(alias) for alias in node.names).encode()
            lines[node.lineno - 1] = line[: node.col_offset] + text + line[node.end_col_offset :]
    return b"\n".join(lines).decode()


def _import(alias: ast.alias) -> str:
    """One name of an import statement, so that it binds the name which it bound before."""
    if not _is_ours(alias.name):
        return f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
    if alias.asname:
        return f"import ratchet.{alias.name} as {alias.asname}"
    top, _, below = alias.name.partition(".")
    loaded = f"import ratchet.{alias.name} as _{alias.name.replace('.', '_')}; " if below else ""
    return f"{loaded}from ratchet import {top}"


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


class BuildBelowRatchet(build_py):
    """Builds the packages as they are, then moves them below `ratchet`."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        root = Path(self.build_lib)
        shutil.rmtree(root, ignore_errors=True)  # of an earlier build, whose files would be moved too
        super().run()
        below = root / "ratchet"
        for name in packages.PACKAGES:
            shutil.move(root / name, below / name)
        for name in packages.SCRIPTS:
            shutil.move(root / f"{name}.py", below / f"{name}.py")
        shutil.copytree(HERE / "configs" / "accelerate", below / "configs" / "accelerate")
        for path in below.rglob("*.py"):
            source = path.read_bytes().decode()
            path.write_bytes(rewrite_imports(source).encode())


class EggInfoOfRatchet(egg_info):
    """Says that the distribution has one package at the top."""

    def run(self) -> None:
        super().run()
        (Path(self.egg_info) / "top_level.txt").write_text("ratchet\n")


setup(cmdclass={"build_py": BuildBelowRatchet, "egg_info": EggInfoOfRatchet})
