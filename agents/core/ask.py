"""One question to one system: `from agents import ask`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agents.core.episode import Setting, run_episode
from agents.core.registry import load_system
from agents.core.resources import open_reach
from inference.adapters import adapter_digest
from inference.engines import close_engines, open_engines
from ratchet.config import Config, load_config
from ratchet.errors import UserError
from ratchet.records import Event, Question, Trajectory
from retrieval.opening import open_index

NAME = "command line"
"""Of the question, and of its scope in the evidence memory: the command and Python share one."""


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
    wrong in the work is the trajectory's `status` and `error`. Index and models are opened anew by every call.
    """
    if isinstance(question, str):
        question = Question(id=NAME, text=question)
    if not question.text.strip():
        raise UserError("the question is empty")
    work = _answer(question, config if isinstance(config, Config) else load_config(config), adapter, sample, watch)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as beside:  # a notebook has an event loop of its own, which cannot run another
        return beside.submit(asyncio.run, work).result()


async def _answer(
    question: Question,
    config: Config,
    adapter: str | Path | None,
    sample: bool,
    watch: Callable[[Event], None] | None,
) -> Trajectory:
    system = load_system(config.system)
    index = open_index(config.index)
    reach = open_reach(config, index)
    how = config.sampling if sample else config.evaluation
    setting = Setting(
        temperature=how.temperature,
        frozen_temperature=config.sampling.frozen_temperature if sample else config.evaluation.temperature,
        top_p=how.top_p,
        adapter=None if adapter is None else str(adapter),
        policy="base" if adapter is None else adapter_digest(adapter),
        scope=NAME,
    )
    engines = open_engines(config.models, system.models)
    try:
        return await run_episode(
            question,
            system,
            engines,
            index,
            setting,
            key=NAME,
            sample=0,
            seed=config.seed,
            watch=watch,
            reach=reach,
        )
    finally:
        await close_engines(engines)
        await reach.close()
