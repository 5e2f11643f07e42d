"""Systems: the declaration that a system's module makes under the name `SYSTEM`, and the systems of a config.

A system is a module `agents/<name>.py`, a folder of that name, one of several in a module (there `SYSTEMS` has them by
name), or code outside of agents/ (`ratchet.core.plugins`).
Adding one is one file and one config:

    class Settings(Section): ...

    async def solve(question: Question, tools: Tools, settings: Settings) -> Answer: ...

    SYSTEM = SystemSpec(Settings, solve, roles=("answerer",))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from ratchet.agents.core.exploration import SearchFields
from ratchet.agents.core.labels import CONSTRAINED
from ratchet.agents.core.prompts import SHARED, Prompts, prompts_digest, replace_prompts
from ratchet.agents.core.tools import Answer, OutOfBudget, Tools, Unparsed
from ratchet.core.config import Section, SystemConfig, parse
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.plugins import Plugin, load_plugin, short_name
from ratchet.core.records import Question
from ratchet.inference.engine import EngineError
from ratchet.retrieval.retriever import SourceError

S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class Calls:
    """Expected calls of a role in an episode, by its settings: the mean of the fewest and the most."""

    number: float = 1
    passages: float = 0
    """Passages that each call shows."""
    conversations: float | None = None
    """None: each call is one of its own."""


@dataclass(frozen=True)
class SystemSpec(Generic[S]):
    """The declaration of a system."""

    settings: type[S]
    solve: Callable[[Question, Tools, S], Awaitable[Answer]]
    """Answers a question. Where it has an answer before its last action, it sets `tools.so_far` to it."""
    roles: tuple[str, ...] | Callable[[S], tuple[str, ...]]
    """The roles that it plays, or a function of its settings that gives them."""
    prompts: Prompts = field(default_factory=dict)
    """Its prompts, which a config can replace."""
    gives_verdict: bool = False
    """True: its answer is a label, so it needs a question with labels, such as a claim."""
    gold_action: Callable[[Question, S], tuple[str, str]] | None = None
    """The role whose action is the answer, and the action that gives `Question.gold_answer`. Raises ValueError where
    the answer does not fit the action's form."""
    names_evidence: bool = False
    """True: it names the documents that support its answer itself, as a program does, whose prompts may show them in
    other words. An answer of other systems has the passages that a prompt showed."""
    embeds: bool = False
    """True: it may embed texts, so that another embedder than the default one is a part of content keys."""
    digest: Callable[[S], str] | None = None
    """Gives the digest of the files that its settings name, for content keys."""
    searches: SearchFields | None = None
    """The fields of its JSON actions that decide about searching, for `sampling.explore` and `sampling.curriculum`."""
    calls: Callable[[S], Mapping[str, Calls]] | None = None
    """The calls of its roles, for `ratchet plan` before a run has measured them. Default: each role once."""


@dataclass(frozen=True)
class System:
    """A system as a config describes it, ready to run."""

    name: str
    """Its name in trajectories and tables."""
    config: SystemConfig
    settings: Section
    spec: SystemSpec[Any]
    roles: tuple[str, ...]
    prompts: Prompts = field(default_factory=lambda: SHARED)
    """By slot; the config's in place of the system's own."""
    digest: str = ""
    """Digest of its source, where that lies outside agents/, and of files that its settings name."""
    plugin: Plugin | None = None

    @property
    def models(self) -> set[str]:
        return {self.config.role(role).model for role in self.roles}

    @property
    def identity(self) -> SystemConfig:
        """The config as content keys have it: with digests of outside code and of the prompts' words in place of paths,
        so that a version with other words continues no run of this one."""
        identity = {"prompts": prompts_digest(self.prompts)}
        if self.digest:
            identity["name"] = f"{short_name(self.config.name)}-{self.digest}"
        return self.config.model_copy(update=identity)

    @contextmanager
    def errors(self, question: Question) -> Iterator[None]:
        """Turn errors of outside code in the block into a UserError, except those by which episodes end."""
        if self.plugin is None:
            yield
            return
        ends = (Unparsed, OutOfBudget, EngineError, SourceError)
        with self.plugin.errors(f"solve failed on the question {question.id!r}", *ends):
            yield


def models_of(systems: Iterable[SystemConfig]) -> set[str]:
    """Names of the models that play any role of these systems."""
    return {name for config in systems for name in load_system(config).models}


def load_system(config: SystemConfig, key: str = "system") -> System:
    """The system of a config, its settings, roles and prompts checked. `key`: where the config names it, for errors."""
    plugin = load_plugin("systems", config.name, (), f"{key}.name")
    spec = plugin.declared("SYSTEM")
    if not isinstance(spec, SystemSpec):
        raise UserError(
            f"{key}.name: {plugin.module.__file__ or plugin.name} declares no system: write at its end SYSTEM = "
            "SystemSpec(Settings, solve, roles=('answerer',)), with SystemSpec from ratchet.agents.core.system "
            "(docs/guides/extend.md)"
        )
    with plugin.errors("is not a system as agents/core/system.py describes it"):
        settings = parse(spec.settings, config.settings, "", f"{key}.settings")
        roles = spec.roles(settings) if callable(spec.roles) else spec.roles
        if isinstance(roles, str) or not all(isinstance(role, str) for role in roles):
            raise UserError(f"{key}.name: {config.name}: SYSTEM has no names of roles, such as roles=('answerer',)")
        known = (*roles, "default")
        for role in config.roles:
            if role not in known:
                raise UserError(f"{key}.roles.{role}: {config.name} has no such role{did_you_mean(role, known)}")
        own: Prompts = {**spec.prompts, **SHARED, **(CONSTRAINED if config.labels == "constrain" else {})}
        prompts = own if config.prompts is None else replace_prompts(own, Path(config.prompts), f"{key}.prompts")
        digest = plugin.digest + (spec.digest(settings) if spec.digest else "")
        return System(plugin.label, config, settings, spec, tuple(roles), prompts, digest, plugin)
