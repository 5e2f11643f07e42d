"""Agent systems by name: `agents/<name>.py`, or a folder of that name.

A system is a module with

    class Settings(Section)                    its own part of the config, checked strictly
    ROLES: tuple[str, ...]                     the roles it plays
    async def solve(question, tools, settings) -> Answer

so adding one is one file and one config. A system that has an answer before its last action sets `tools.so_far` to it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import agents
from agents.core.tools import Answer, Tools
from ratchet.config import Section, SystemConfig, parse
from ratchet.errors import UserError, did_you_mean
from ratchet.records import Question


@dataclass(frozen=True)
class System:
    name: str
    config: SystemConfig
    settings: Section
    roles: tuple[str, ...]
    run: Callable[[Question, Tools, Section], Awaitable[Answer]]

    @property
    def models(self) -> set[str]:
        """Names of the models that play its roles."""
        return {self.config.role(role).model for role in self.roles}

    async def solve(self, question: Question, tools: Tools) -> Answer:
        return await self.run(question, tools, self.settings)


def models_of(systems: Iterable[SystemConfig]) -> set[str]:
    """Names of the models that play any role of these systems."""
    return {name for config in systems for name in load_system(config).models}


def known_systems() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(agents.__path__) if m.name not in ("__main__", "core"))


def load_system(config: SystemConfig) -> System:
    """The system of a config, its settings and roles checked. Only what lies in agents/ is ever imported."""
    known = known_systems()
    if config.name not in known:
        raise UserError(f"system.name: no system {config.name!r} in agents/{did_you_mean(config.name, known)}")
    module = importlib.import_module(f"agents.{config.name}")
    for part in ("Settings", "ROLES", "solve"):
        if not hasattr(module, part):
            raise UserError(f"agents/{config.name} is not a system: it has no {part}; see agents/core/registry.py")
    for role in config.roles:
        if role not in (*module.ROLES, "default"):
            raise UserError(
                f"system.roles.{role}: {config.name} has no such role{did_you_mean(role, (*module.ROLES, 'default'))}"
            )
    settings = parse(module.Settings, config.settings, "system.settings")
    return System(config.name, config, settings, tuple(module.ROLES), module.solve)
