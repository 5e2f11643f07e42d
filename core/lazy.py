"""Names that a package offers to its users without importing what they need: `from ratchet.retrieval import open_index`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ratchet.core.packages import module_name


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's `__getattr__` (PEP 562). `homes`: the module of each name, imported when the name is first used."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module_name(homes[name])), name)

    return get
