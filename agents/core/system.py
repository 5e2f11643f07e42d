"""A system: loading it by its name (`agents.core.spec` says what it declares), and running it on one question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.core.checks import shown_passages, why_cut_off
from agents.core.labels import CONSTRAINED, with_constrained_label
from agents.core.prompts.template import SHARED, Prompts, prompts_digest, replace_prompts
from agents.core.resources import Resources
from agents.core.spec import SystemSpec
from agents.core.tools import Answer, OutOfBudget, RunContext, Tools, Unparsed
from inference.engine import Engine, EngineError
from inference.session import session
from ratchet.config import Section, SystemConfig, parse
from ratchet.errors import UserError, did_you_mean
from ratchet.plugins import Plugin, known_plugins, load_plugin, short_name
from ratchet.records import Event, Question, Status, Trajectory
from retrieval.errors import SourceError
from retrieval.index import Retriever

__all__ = ["RunContext", "System", "known_systems", "load_system", "models_of", "run_episode"]


@dataclass(frozen=True)
class System:
    """A system as a config describes it, ready to run."""

    name: str
    """What trajectories and tables call it."""
    config: SystemConfig
    settings: Section
    spec: SystemSpec[Any]
    roles: tuple[str, ...]
    prompts: Prompts = field(default_factory=lambda: SHARED)
    """By slot; the config's in place of the system's own."""
    digest: str = ""
    """Of its source, where that lies outside agents/, and of files that its settings name."""
    plugin: Plugin | None = None
    """Where its code is from."""

    @property
    def models(self) -> set[str]:
        """Names of the models that play its roles."""
        return {self.config.role(role).model for role in self.roles}

    @property
    def identity(self) -> SystemConfig:
        """The config as content keys have it: outside code and prompts by their digests, not where they lie.

        The prompts' digest is of the words in use, so that a version with other words continues no run of this one.
        """
        identity = {"prompts": prompts_digest(self.prompts)}
        if self.digest:
            identity["name"] = f"{short_name(self.config.name)}-{self.digest}"
        return self.config.model_copy(update=identity)

    async def solve(self, question: Question, tools: Tools) -> Answer:
        """Raises UserError where code from outside does what no system may."""
        with self.errors(question):
            solving = self.spec.solve(question, tools, self.settings)
            if question.labels and self.config.labels == "constrain":
                solving = with_constrained_label(question, tools, solving)
            answer = await solving
            if not isinstance(answer, Answer):
                raise TypeError(f"solve returned {type(answer).__name__} and not an Answer")
            return answer

    @contextmanager
    def errors(self, question: Question) -> Iterator[None]:
        """What code from outside raises in the block becomes a UserError, unless it is a way in which episodes end."""
        if self.plugin is None:
            yield
            return
        ends = (Unparsed, OutOfBudget, EngineError, SourceError)
        with self.plugin.errors(f"solve failed on the question {question.id!r}", *ends):
            yield


def models_of(systems: Iterable[SystemConfig]) -> set[str]:
    """Names of the models that play any role of these systems."""
    return {name for config in systems for name in load_system(config).models}


def known_systems() -> list[str]:
    """The names of the systems in agents/, and of those that installed packages declare."""
    return known_plugins("systems")


def load_system(config: SystemConfig, key: str = "system") -> System:
    """The system of a config, its settings, roles and prompts checked. `key`: where the config names it, for errors."""
    plugin = load_plugin("systems", config.name, (), f"{key}.name")
    spec = getattr(plugin.module, "SYSTEM", None)
    if not isinstance(spec, SystemSpec):
        raise UserError(
            f"{key}.name: {plugin.module.__file__ or plugin.name} declares no system: write at its end SYSTEM = "
            "SystemSpec(Settings, solve, roles=('answerer',)), with SystemSpec from agents.core.spec "
            "(docs/guides/own-system.md)"
        )
    with plugin.errors("is not a system as agents/core/spec.py describes it"):
        return _make(plugin, spec, config, key)


def _make(plugin: Plugin, spec: SystemSpec[Any], config: SystemConfig, key: str) -> System:
    settings = parse(spec.settings, config.settings, "", f"{key}.settings")
    roles = spec.roles(settings) if callable(spec.roles) else spec.roles
    if isinstance(roles, str) or not all(isinstance(role, str) for role in roles):
        raise UserError(f"{key}.name: {config.name}: SYSTEM has no names of roles, such as roles=('answerer',)")
    for role in config.roles:
        if role not in (*roles, "default"):
            raise UserError(
                f"{key}.roles.{role}: {config.name} has no such role{did_you_mean(role, (*roles, 'default'))}"
            )
    own: Prompts = {**spec.prompts, **SHARED, **(CONSTRAINED if config.labels == "constrain" else {})}
    prompts = own if config.prompts is None else replace_prompts(own, Path(config.prompts), f"{key}.prompts")
    digest = plugin.digest + (spec.digest(settings) if spec.digest else "")
    return System(plugin.label, config, settings, spec, tuple(roles), prompts, digest, plugin)


async def _solve(question: Question, system: System, tools: Tools) -> tuple[Answer, Status, str]:
    """(the answer, how the episode ended, why it did not finish)."""
    try:
        with session(question.id):
            answer = await system.solve(question, tools)
        ended: tuple[Answer, Status, str] = answer, answer.status, answer.error
    except Unparsed as problem:
        ended = tools.so_far, "unparsed", str(problem)
    except OutOfBudget as problem:
        ended = tools.so_far, "out_of_budget", str(problem)
    except (EngineError, SourceError) as problem:
        return Answer(""), "failed", str(problem)
    if outage := tools.outage:
        return Answer("", turns=ended[0].turns, stopped=ended[0].stopped), "failed", outage
    return ended


async def run_episode(
    question: Question,
    system: System,
    engines: Mapping[str, Engine],
    retriever: Retriever,
    context: RunContext,
    *,
    key: str,
    sample: int,
    seed: int,
    watch: Callable[[Event], None] | None = None,
    resources: Resources | None = None,
) -> Trajectory:
    """Let the system answer, and return the record of it.

    What a model or a server does wrong is the trajectory's status and error, never an exception here; a UserError
    (the config is wrong) passes through. A tool that fails is told to the agent, which may go on with others; where no
    lookup got an answer at all, the trajectory failed, however it ended. Where an action is malformed or a budget is
    used up, the answer is the one that the system had in hand (`tools.so_far`). An answer that ends where a reply was
    cut off is unparsed, and documents that no model was shown are no part of it. A failed trajectory has no answer: it
    is sampled again.
    `watch` is called with each event as it ends.
    """
    tools = Tools(system.config, engines, retriever, context, seed, watch, resources, question, system.prompts, sample)
    try:
        answer, status, error = await _solve(question, system, tools)
        with system.errors(question):
            trajectory = Trajectory(
                key=key,
                question_id=question.id,
                system=system.name,
                policy=context.policy,
                sample=sample,
                seed=seed,
                status=status,
                answer=answer.text,
                explanation=answer.explanation,
                error=error,
                passages=answer.passages,
                candidates=dict(answer.candidates),
                turns=answer.turns,
                stopped=answer.stopped,
                events=tools.events,
                conversations=tools.conversations,
                seconds=tools.seconds,
            )
        return _checked(trajectory, question, system, tools)
    finally:
        tools.close()


def _checked(trajectory: Trajectory, question: Question, system: System, tools: Tools) -> Trajectory:
    """The trajectory without documents that no model was shown, and unparsed where its answer was cut off."""
    if trajectory.status == "finished" and (error := why_cut_off(question, trajectory)):
        trajectory = trajectory.model_copy(update={"status": "unparsed", "error": error})
    if trajectory.answer.strip() and not system.spec.names_evidence:
        shown = shown_passages(trajectory.passages, tools.shown)
        if left_out := len(trajectory.passages) - len(shown):
            tools.note(system.roles[0], f"left out {left_out} document(s) of the answer that no model was shown")
            trajectory = trajectory.model_copy(update={"passages": shown, "events": tools.events})
    return trajectory
