"""One question to one system: `from agents import ask`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from agents.core.resources import open_resources
from agents.core.system import RunContext, load_system, run_episode
from inference.adapters import adapter_digest
from inference.engines import close_engines, open_engines
from ratchet.config import Config, load_config
from ratchet.errors import UserError
from ratchet.records import Event, Question, Trajectory
from ratchet.tasks import run_outside_event_loop
from retrieval.loader import open_index

NAME = "command line"
"""Of the question, and of its scope in the evidence memory: the command and Python share one."""
SYSTEM = ""
"""The name of the config's `system` beside those of the baselines."""


def ask(
    question: str | Question,
    config: str | Path | Config,
    adapter: str | Path | None = None,
    *,
    sample: bool = False,
    watch: Callable[[Event], None] | None = None,
) -> Trajectory:
    """Let the system of a config answer a question, and return all of its work: `.answer`, `.passages`, `.events`.

    `adapter`: a LoRA folder for the roles that are trained; default: the base model. `sample`: with the temperature of
    training, not of evaluation. `watch` is called with each event as it ends. A wrong config is a UserError; what goes
    wrong in the work is the trajectory's `status` and `error`. Every call opens index and models; `SystemRunner` keeps
    them open for several questions.
    """
    asked = as_question(question)
    config = config if isinstance(config, Config) else load_config(config)
    return run_outside_event_loop(lambda: asyncio.run(_answer(asked, config, adapter, sample, watch)))


async def _answer(
    question: Question,
    config: Config,
    adapter: str | Path | None,
    sample: bool,
    watch: Callable[[Event], None] | None,
) -> Trajectory:
    async with SystemRunner(config) as runner:
        return await runner.ask(question, adapter, sample=sample, watch=watch)


class SystemRunner:
    """The system of a config with its index, sources and models open, for any number of questions.

    `async with SystemRunner(config) as runner` closes them. Every call belongs to one event loop. `baselines`: with
    those of `evaluation.baselines`, each of which can be asked in the system's place.
    """

    def __init__(self, config: Config, baselines: bool = False) -> None:
        self.config = config
        self.systems = {SYSTEM: load_system(config.system)}
        """By a baseline's name, or SYSTEM."""
        if baselines:
            self.systems |= {
                name: load_system(system, f"evaluation.baselines.{name}")
                for name, system in config.evaluation.baselines.items()
            }
        self._index = open_index(config.index)
        self._resources = open_resources(config.environment, self._index)
        self._engines = open_engines(config.models, set().union(*(system.models for system in self.systems.values())))

    async def __aenter__(self) -> SystemRunner:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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
        """Answer a question, as the function `ask` does. `system`: a key of `systems`."""
        question = as_question(question)
        config = self.config
        how = config.sampling if sample else config.evaluation
        context = RunContext(
            temperature=how.temperature,
            frozen_temperature=config.sampling.frozen_temperature if sample else config.evaluation.temperature,
            top_p=how.top_p,
            adapter=None if adapter is None else str(adapter),
            policy="base" if adapter is None else await asyncio.to_thread(adapter_digest, adapter),
            scope=NAME,
        )
        return await run_episode(
            question,
            self.systems[system],
            self._engines,
            self._index,
            context,
            key=NAME,
            sample=0,
            seed=config.seed,
            watch=watch,
            resources=self._resources,
        )


def as_question(question: str | Question) -> Question:
    """The question of a text. UserError where it is empty."""
    if isinstance(question, str):
        question = Question(id=NAME, text=question)
    if not question.text.strip():
        raise UserError("the question is empty")
    return question
