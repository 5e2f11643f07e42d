"""Asking systems whose index, sources and models stay open, for any number of questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ratchet.agents.core.resources import open_resources
from ratchet.agents.core.system import load_system
from ratchet.agents.core.task import Job, RunContext
from ratchet.core.config import Config
from ratchet.core.config.system import TOP_P
from ratchet.core.errors import UserError
from ratchet.core.records import Event, Question, Trajectory
from ratchet.inference.adapters import adapter_digest
from ratchet.inference.engines import close_engines, open_engines
from ratchet.retrieval.opening import open_index
from ratchet.sampling.pool import run_episode

NAME = "command line"
"""Of the question, and of its scope in the evidence memory: the command and Python share one."""
SYSTEM = ""
"""The name of the config's `system` beside those of the baselines."""


class SystemRunner:
    """Systems with their index, sources and models open. Every call belongs to one event loop."""

    def __init__(self, config: Config, baselines: bool = False) -> None:
        """`baselines`: with those of `evaluation.baselines`, by their names."""
        self.systems = {SYSTEM: load_system(config.system)}
        for name, system in config.evaluation.baselines.items() if baselines else ():
            self.systems[name] = load_system(system, f"evaluation.baselines.{name}")
        how, trained, self._seed = config.evaluation, config.sampling, config.seed
        self._evaluated = RunContext(how.temperature, how.temperature, TOP_P, None, "base", NAME)
        self._sampled = RunContext(trained.temperature, trained.frozen_temperature, trained.top_p, None, "base", NAME)
        self._index = open_index(config.index)
        self._resources = open_resources(config, self._index)
        self._engines = open_engines(config.models, set().union(*(one.models for one in self.systems.values())))

    async def close(self) -> None:
        """Close the models and the sources."""
        try:
            await close_engines(self._engines)
        finally:
            await self._resources.close()

    async def ask(
        self,
        question: str | Question,
        adapter: str | Path | None = None,
        *,
        sample: bool = False,
        watch: Callable[[Event], None] | None = None,
        system: str = SYSTEM,
    ) -> Trajectory:
        """Let a system answer a question, and return all of its work: `.answer`, `.passages`, `.events`.

        `adapter`: a LoRA folder for the roles that are trained; default: the base model. `sample`: with the temperature
        of training, not of evaluation. `watch` is called with each event as it ends. A wrong config is a UserError;
        what goes wrong in the work is the trajectory's `status` and `error`.
        """
        question = as_question(question)
        context = self._sampled if sample else self._evaluated
        if adapter is not None:
            policy = await asyncio.to_thread(adapter_digest, adapter)
            context = replace(context, adapter=str(adapter), policy=policy)
        job = Job(question, sample=0, key=NAME, seed=self._seed)
        return await run_episode(job, self.systems[system], self._engines, self._index, context, self._resources, watch)


def as_question(question: str | Question) -> Question:
    """The question of a text. UserError where it is empty."""
    if isinstance(question, str):
        question = Question(id=NAME, text=question)
    if not question.text.strip():
        raise UserError("the question is empty")
    return question
