"""The served systems, and the answering of one question within the limits, apart from the form of requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from ratchet.agents.core.system import System
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.http.openai import ONCE, ApiError, Turns
from ratchet.core.plugins import short_name
from ratchet.core.records import Event, Label, Question, Trajectory, content_key
from ratchet.questions.labels import FEVER
from ratchet.sampling.ask import SYSTEM, SystemRunner
from ratchet.serve import Limits

Form = Literal["question", "claim"]


@dataclass(frozen=True)
class ServedModel:
    """One system under one policy, as clients name it."""

    id: str
    system: str
    """Among the systems of a SystemRunner."""
    adapter: str | None
    """A LoRA folder; None: the base model."""
    form: Form
    """The form of its questions: a system that gives a verdict is asked a claim."""


class Answerer:
    """Answers questions by any of the config's systems. Every call belongs to one event loop."""

    def __init__(self, runner: SystemRunner, adapter: str | None, trained: str, limits: Limits) -> None:
        """`trained`: the name of the model that the adapter is of."""
        self.limits = limits
        self.models = {model.id: model for model in served_models(runner.systems, adapter, trained)}
        """The config's own system first, and what the adapter changes before its base model."""
        self._runner, self._turns = runner, Turns(limits.concurrent, limits.waiting)

    def model(self, name: str) -> ServedModel:
        if name not in self.models:
            message = f"there is no model {name[:100]!r}{did_you_mean(name[:100], self.models)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self.models[name]

    def question(
        self, model: ServedModel, text: str, form: Form | None = None, labels: tuple[Label, ...] = ()
    ) -> Question:
        """Return the question that a client asks; a claim has the labels of FEVER unless others are given. Raises
        ApiError."""
        if not text.strip():
            raise ApiError(400, "the question is empty", param="messages")
        if len(text) > self.limits.question_characters:
            message = f"the question has {len(text)} characters, the limit is {self.limits.question_characters}"
            raise ApiError(400, message, param="messages")
        form = form or model.form
        if not labels and model.form == "claim":
            labels = FEVER
        try:
            # Its own id: several model servers share work by it, and the evidence memory tells questions apart.
            name = content_key("served", text, form, labels)[:16]
            return Question(id=name, text=text.strip(), form=form, labels=labels)
        except ValidationError as error:
            raise ApiError(400, error.errors()[0]["msg"], param="labels") from None

    async def work(self, model: ServedModel, question: Question) -> AsyncGenerator[Event | Trajectory]:
        """Answer in one's turn: yield every step when it ends, and at last the trajectory. Closing it cancels the work.

        Raises ApiError, also where the work failed, which is never an answer.
        """
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        working = asyncio.ensure_future(self._answer(model, question, events.put_nowait))
        working.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            yield working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _answer(self, model: ServedModel, question: Question, watch: Callable[[Event], None]) -> Trajectory:
        async with self._turns.turn(self.limits.seconds):
            try:
                trajectory = await self._runner.ask(question, model.adapter, watch=watch, system=model.system)
            except UserError as error:
                raise ApiError(500, f"the server's config: {error}", headers=ONCE) from error
        if trajectory.status == "failed":
            raise ApiError(502, trajectory.error, code="failed", headers=ONCE)
        return trajectory


def served_models(systems: Mapping[str, System], adapter: str | None, trained: str) -> list[ServedModel]:
    """Return every system with the adapter, where it has a role that is trained, and on the base model."""
    models: list[ServedModel] = []
    for name, system in systems.items():
        title = short_name(system.config.name) if name == SYSTEM else name
        label = re.sub(r"[^\w.-]+", "-", title).strip("-") or "system"
        form: Form = "claim" if system.spec.gives_verdict else "question"
        roles = [system.config.role(role) for role in system.roles]
        if adapter is not None and any(role.trainable and role.model == trained for role in roles):
            models.append(ServedModel(f"{label}:adapter", name, adapter, form))
        models.append(ServedModel(f"{label}:base", name, None, form))
    names = [model.id for model in models]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"evaluation.baselines: two systems would be served as {name!r}; rename one of them")
    return models
