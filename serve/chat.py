"""Questions as OpenAI's chat completions: what a request asks, and what a trajectory is as its answer.

The answer is the content, every step is `reasoning_content` when it ends, and the supporting documents are url_citation
annotations. What OpenAI's form has no place for is under `ratchet`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import BeforeValidator, Field

from ratchet.agents.core.steps import describe_step
from ratchet.core.http.openai import ApiError, ChatRequest
from ratchet.core.records import Event, Label, Passage, Question, Trajectory, content_key
from ratchet.questions.labels import label_named
from ratchet.serve.answering import Answerer, Form, ServedModel

REFUSED = {
    "tools": "the system has its own tools",
    "functions": "the system has its own tools",
    "logprobs": "a system's answer has no log-probabilities",
    "audio": "there is only text",
}
"""Parameters that would change what an answer is, and why they are not there."""

AnyLabel = Annotated[Label, BeforeValidator(lambda given: label_named(given) if isinstance(given, str) else given)]


class AnswerRequest(ChatRequest):
    """A chat request, and what a question may have besides its text."""

    form: Form | None = None
    """What the text is; default: what the model takes."""
    labels: tuple[AnyLabel, ...] = Field((), max_length=50)
    """For a system that gives a verdict: the labels, as {name, meaning, stance} or by their names alone."""


def question_of(answerer: Answerer, model: ServedModel, request: AnswerRequest) -> Question:
    """The question: the last message, which is a user's; a system reads no others. Raises ApiError."""
    extra = request.model_extra or {}
    for name, reason in REFUSED.items():
        if extra.get(name):
            raise ApiError(400, f"{name} is not supported: {reason}", param=name, code="unsupported_parameter")
    if extra.get("n") not in (None, 1):
        raise ApiError(400, "n must be 1: ask again for another answer", param="n", code="unsupported_parameter")
    wanted = extra.get("response_format")
    if wanted is not None and (not isinstance(wanted, dict) or wanted.get("type") != "text"):
        message = "response_format is not supported: the answer is text"
        raise ApiError(400, message, param="response_format", code="unsupported_parameter")
    at = len(request.messages) - 1
    if request.messages[at].role != "user":
        raise ApiError(400, "the last message must be a user's: it is the question", param=f"messages.{at}.role")
    text = request.messages[at].text(f"messages.{at}.content")
    return answerer.question(model, text, request.form, request.labels)


class Completion:
    """One completion: its parts share an id and a time."""

    def __init__(self, answerer: Answerer, model: ServedModel, question: Question) -> None:
        self._answerer, self._model, self._question = answerer, model, question
        self._created = int(time.time())
        self._id = "chatcmpl-" + content_key(question, model.id, time.time_ns())[:24]

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece. Raises ApiError."""
        steps: list[str] = []
        async with contextlib.aclosing(self._answerer.work(self._model, self._question)) as work:
            async for part in work:
                if not isinstance(part, Trajectory):
                    steps.append(_line(part))
                    continue
                trajectory = part
        message = {"role": "assistant", **_said(trajectory), "reasoning_content": "".join(steps)}
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(trajectory), "logprobs": None}
        more = {"usage": usage(trajectory), "ratchet": facts(trajectory)}
        return self._object("chat.completion", choices=[choice]) | more

    async def stream(self, include_usage: bool) -> AsyncGenerator[dict[str, Any]]:
        """The answer as chunks, each step when it ends. Raises ApiError."""
        role = {"role": "assistant"}
        async with contextlib.aclosing(self._answerer.work(self._model, self._question)) as work:
            async for part in work:
                if not isinstance(part, Trajectory):
                    chunk = self._chunk({**role, "reasoning_content": _line(part)})
                    yield chunk | {"ratchet": {"step": step_of(part)}}
                    role = {}
                    continue
                trajectory = part
        yield self._chunk({**role, **_said(trajectory)})
        yield self._chunk({}, _finish_reason(trajectory)) | {"ratchet": facts(trajectory)}
        if include_usage:
            yield self._object("chat.completion.chunk", choices=[]) | {"usage": usage(trajectory)}

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": dict(delta), "finish_reason": finish_reason, "logprobs": None}
        return self._object("chat.completion.chunk", choices=[choice])

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model.id,
            "choices": choices,
        }


def _said(trajectory: Trajectory) -> dict[str, Any]:
    """Content and annotations; a refusal where there is no answer."""
    if not trajectory.answer:
        return {"content": "", "refusal": no_answer(trajectory)}
    return {"content": trajectory.answer, "annotations": [citation(p, trajectory.answer) for p in trajectory.passages]}


def no_answer(trajectory: Trajectory) -> str:
    """Why a trajectory has no answer, as a sentence."""
    return f"The system gave no answer ({trajectory.status}). {trajectory.error}".strip()


def _finish_reason(trajectory: Trajectory) -> str:
    return "length" if trajectory.status == "out_of_budget" else "stop"


def citation(passage: Passage, answer: str) -> dict[str, Any]:
    """A supporting document as OpenAI's url_citation of the whole answer, and the passage itself beside it."""
    name = passage.document_id
    url = name if name.startswith(("http://", "https://")) else f"document:{quote(name, safe='')}"
    place = {"start_index": 0, "end_index": len(answer), "title": passage.title or name, "url": url}
    return {"type": "url_citation", "url_citation": place, "passage": passage.model_dump(mode="json")}


def step_of(event: Event) -> dict[str, Any]:
    """A step for programs, with whole passages."""
    step = describe_step(event)
    found = None if step.passages is None else [passage.model_dump(mode="json") for passage in step.passages]
    words = {"role": step.role, "text": step.text, "problem": step.problem, "found": step.found}
    return {"kind": event.kind, **words, "passages": found, "at": round(event.at, 3)}


def _line(event: Event) -> str:
    return f"{describe_step(event)}\n"


def usage(trajectory: Trajectory) -> dict[str, Any]:
    """The tokens of all model calls."""
    calls = trajectory.model_calls
    prompt, new = sum(call.prompt_tokens for call in calls), sum(call.new_tokens for call in calls)
    cached = {"cached_tokens": sum(call.cached_tokens for call in calls)}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": cached,
        "completion_tokens_details": {"reasoning_tokens": sum(call.thought_tokens for call in calls)},
    }


def facts(trajectory: Trajectory) -> dict[str, Any]:
    """What OpenAI's form has no place for."""
    return {
        "system": trajectory.system,
        "policy": trajectory.policy,
        "status": trajectory.status,
        "error": trajectory.error,
        "explanation": trajectory.explanation,
        "candidates": trajectory.candidates,
        "stopped": trajectory.stopped,
        "model_calls": len(trajectory.model_calls),
        "searches": len(trajectory.searches),
        "seconds": round(trajectory.seconds, 3),
    }
