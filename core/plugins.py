"""Finds a plug-in by the name that a config gives it: a system, a reward, a benchmark, a source or an objective.

A name that ends in `.py` or contains a `/` is the path of a file or folder of Python code. Any other is a module of the
built-in folder of its kind, or stands in a module with others (`Folder.shared`). A module has one plug-in in a constant
such as SYSTEM, or several by name in its plural, SYSTEMS.

Code outside the built-in folders is identified by a digest of its source, which becomes part of the content keys of
what it makes. A config names the code that runs on its user's machine, so a config is as trusted as a program; data
files and model output never name a plug-in.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.files import read_small
from ratchet.core.text import short_line

Kind = Literal["systems", "rewards", "benchmarks", "sources", "objectives", "explore"]

MAX_BYTES = 100_000_000
"""The largest module in bytes."""
MODULE_PREFIX = "ratchet_plugin_"  # of the modules that are imported from a path


@dataclass(frozen=True)
class Folder:
    """The place of the built-in plug-ins of a kind."""

    package: str
    """Empty where a kind has none."""
    skip: tuple[str, ...] = ()
    """Modules of the package that are not plug-ins."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Plug-ins that stand in one module with others, and the module of each."""


FOLDERS: dict[Kind, Folder] = {
    "systems": Folder(
        "ratchet.agents",
        ("core",),
        {
            **dict.fromkeys(("naive_gen", "naive_rag", "no_retrieval", "vanilla_rag", "direct", "cot"), "one_call"),
            **dict.fromkeys(("iter_retgen", "ircot", "flare"), "iterative_rag"),
            **dict.fromkeys(("mad", "mad_drag", "drag"), "debates"),
            **dict.fromkeys(("factool", "factcheck_gpt"), "claim_checkers"),
        },
    ),
    "rewards": Folder(
        "ratchet.rewards.builtin",
        shared={
            **dict.fromkeys(("accuracy", "em", "f1", "nugget_containment", "lexical_support", "reported"), "answers"),
            **dict.fromkeys(("faithfulness", "precision"), "claims"),
            **dict.fromkeys(("model_calls", "searches", "tool_calls", "tokens"), "costs"),
        },
    ),
    "benchmarks": Folder(
        "ratchet.questions.benchmarks",
        shared={
            **dict.fromkeys(
                ("nq", "triviaqa", "popqa", "bamboogle", "hotpotqa", "twowiki", "musique"), "short_answers"
            ),
            **dict.fromkeys(("fever", "hover", "bingcheck", "factool_qa"), "claims"),
        },
    ),
    "sources": Folder(""),
    "objectives": Folder("ratchet.training.objectives", ("objective",)),
    "explore": Folder(""),
}


@dataclass(frozen=True)
class Plugin:
    """A module that was found, and the identity of its code."""

    name: str
    module: ModuleType
    digest: str = ""
    """16 hexadecimal digits of the sha256 of the source; empty for a built-in plug-in."""

    def declared(self, constant: str) -> Any:
        """Return what the module declares under a constant such as SYSTEM, or by this name under its plural; else
        None."""
        several = getattr(self.module, f"{constant}S", None)
        return several.get(self.name) if isinstance(several, Mapping) else getattr(self.module, constant, None)

    @property
    def label(self) -> str:
        """A short name for folders, tables and content keys: a built-in's name, else the stem and the digest."""
        return f"{short_name(self.name)}-{self.digest[:8]}" if self.digest else self.name

    @property
    def is_outside(self) -> bool:
        return bool(self.digest)

    @contextmanager
    def errors(self, problem: str, *passing: type[Exception], becomes: type[Exception] = UserError) -> Iterator[None]:
        """Turn whatever outside code raises in the block into `becomes`, which names the plug-in, `problem`, the error
        and its line. UserErrors, `passing` and errors of built-in plug-ins are raised as they are."""
        raised: tuple[type[Exception], ...] = (UserError, *passing)
        try:
            yield
        except raised:
            raise
        except (Exception, SystemExit) as error:
            if not self.is_outside:
                raise
            described = describe_error(error, Path(self.module.__file__ or ""))
            raise becomes(f"{self.name}: {problem} ({described})") from error


def is_path(name: str) -> bool:
    """Return whether a config names a plug-in by the path of a file or folder."""
    return name.endswith(".py") or "/" in name


def short_name(name: str) -> str:
    """Return the name that people read: a path's stem, else the name itself."""
    return Path(name).stem if is_path(name) else name


def resolve_path(name: str) -> Path:
    """Return the file of a plug-in's path: a package's `__init__.py`, where the path is a folder."""
    path = Path(name).expanduser()
    return path / "__init__.py" if path.is_dir() else path


def known_plugins(kind: Kind) -> list[str]:
    """The names of the built-in plug-ins."""
    folder = FOLDERS[kind]
    if not folder.package:
        return []
    found = pkgutil.iter_modules(importlib.import_module(folder.package).__path__)
    return sorted({module.name for module in found} - {*folder.skip, *folder.shared.values()} | folder.shared.keys())


def load_plugin(kind: Kind, name: str, parts: Sequence[str], key: str) -> Plugin:
    """Load the plug-in, which must define every name in `parts`. `key` is the config's key that names it.

    Raises UserError where there is none of this name, its import fails, or a part is missing.
    """
    plugin = _load(kind, name, key)
    missing = [part for part in parts if not hasattr(plugin.module, part)]
    if missing:
        raise UserError(
            f"{key}: {plugin.module.__file__ or name} defines no {', '.join(missing)}, which {kind} must have"
        )
    return plugin


def _load(kind: Kind, name: str, key: str) -> Plugin:
    if is_path(name):
        return _from_path(kind, name, key)
    folder = FOLDERS[kind]
    known = known_plugins(kind)
    if name in known:
        return Plugin(name, importlib.import_module(f"{folder.package}.{folder.shared.get(name, name)}"))
    where = f" in {folder.package.removeprefix('ratchet.').replace('.', '/')}/" if folder.package else ""
    hint = f"{did_you_mean(name, known)}; a file of your own is named by its path, such as ./mine.py"
    raise UserError(f"{key}: there is no {name!r}{where}{hint}")


def _from_path(kind: Kind, name: str, key: str) -> Plugin:
    file = resolve_path(name)
    if not file.is_file():
        raise UserError(
            f"{key}: there is no file {file}; a path is relative to the config's folder or, where nothing is there, to "
            "the working directory"
        )
    digest = source_digest(file)
    try:
        return Plugin(name, _import_file(kind, file.resolve(), digest), digest)
    except (Exception, SystemExit) as error:
        raise UserError(f"{key}: {file} cannot be imported ({describe_error(error, file)})") from error


class _SourceLoader(SourceFileLoader):
    """Compiles the source that is there now. Python's own loader takes a compiled file of the same second and size for
    current, so that a plug-in which was just edited would run its old code under the new digest."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _SubmoduleFinder:
    """Finds the modules inside a plug-in that is a folder."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(MODULE_PREFIX) or (spec := PathFinder.find_spec(name, path, target)) is None:
            return None
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _SourceLoader(name, spec.loader.path)
        return spec


@cache
def _import_file(kind: Kind, file: Path, digest: str) -> ModuleType:
    is_package = file.name == "__init__.py"
    # The name holds the digest, so that two files of one name, or two versions in a notebook, do not collide.
    name = f"{MODULE_PREFIX}{kind}_{(file.parent if is_package else file).stem}_{digest}"
    loader = _SourceLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(
        name, file, loader=loader, submodule_search_locations=[str(file.parent)] if is_package else None
    )
    assert spec is not None
    if _SubmoduleFinder not in sys.meta_path:
        sys.meta_path.insert(0, _SubmoduleFinder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def describe_error(error: BaseException, module: Path | None = None) -> str:
    """Describe an exception in one line: its type, its message, and the line of the module's code that led to it."""
    try:
        said = short_line(str(error))
    except Exception:  # of outside code as well
        said = ""
    described = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if module is None:
        return described
    module = module.resolve()
    own = module.parent if module.name == "__init__.py" else module
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(Path(one.filename).name, one.lineno) for one in frames if Path(one.filename).is_relative_to(own)]
    return f"{described}; {lines[-1][0]}, line {lines[-1][1]}" if lines else described


def source_digest(file: Path) -> str:
    """Return a digest of a module's file, or of every Python file of its folder where it is a package."""
    digest = hashlib.sha256()
    folder = file.parent
    for path in sorted(folder.rglob("*.py")) if file.name == "__init__.py" else [file]:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + read_small(path, MAX_BYTES) + b"\0")
    return digest.hexdigest()[:16]
