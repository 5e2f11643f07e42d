"""The server's app: questions as OpenAI's chat completions, and the page.

POST /v1/chat/completions   a question to a model
GET  /v1/models, /v1/models/NAME, /health
GET  /                      a page that asks and compares

The answer is the content, every step is `reasoning_content` when it ends, and the supporting documents are url_citation
annotations. What OpenAI's form has no place for is under `ratchet`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from pydantic import BeforeValidator, Field

from ratchet import report
from ratchet.agents.core.steps import describe_step
from ratchet.core.http.app import PAGE_HEADERS, add_health, open_app
from ratchet.core.http.openai import ApiError, ChatRequest, EventStream, json_response
from ratchet.core.records import Event, Label, Passage, Question, Trajectory, content_key
from ratchet.questions.labels import label_named
from ratchet.serve.answering import Answerer, Form, ServedModel

PAGE = Path(__file__).parent / "page"
STYLE = Path(report.__path__[0]) / "base.css"
"""The look of the report, which comes before what this page has of its own."""
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
SECURITY = {
    **PAGE_HEADERS,
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""Headers of the page: it runs its own script and talks to its own server, and to nothing else."""
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
    """The form of the text; default: the model's."""
    labels: tuple[AnyLabel, ...] = Field((), max_length=50)
    """For a system that gives a verdict: the labels, as {name, meaning, stance} or by their names alone."""


def question_of(answerer: Answerer, model: ServedModel, request: AnswerRequest) -> Question:
    """Return the question: the last message, which is a user's; a system reads no others. Raises ApiError."""
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
    if not trajectory.answer:
        reason = f"The system gave no answer ({trajectory.status}). {trajectory.error}".strip()
        return {"content": "", "refusal": reason}
    return {"content": trajectory.answer, "annotations": [citation(p, trajectory.answer) for p in trajectory.passages]}


def _finish_reason(trajectory: Trajectory) -> str:
    return "length" if trajectory.status == "out_of_budget" else "stop"


def citation(passage: Passage, answer: str) -> dict[str, Any]:
    """Return a supporting document as OpenAI's url_citation of the whole answer, and the passage itself beside it."""
    name = passage.document_id
    url = name if name.startswith(("http://", "https://")) else f"document:{quote(name, safe='')}"
    place = {"start_index": 0, "end_index": len(answer), "title": passage.title or name, "url": url}
    return {"type": "url_citation", "url_citation": place, "passage": passage.model_dump(mode="json")}


def step_of(event: Event) -> dict[str, Any]:
    """Return a step for programs, with whole passages."""
    step = describe_step(event)
    found = None if step.passages is None else [passage.model_dump(mode="json") for passage in step.passages]
    words = {"role": step.role, "text": step.text, "problem": step.problem, "found": step.found}
    return {"kind": event.kind, **words, "passages": found, "at": round(event.at, 3)}


def _line(event: Event) -> str:
    return f"{describe_step(event)}\n"


def usage(trajectory: Trajectory) -> dict[str, Any]:
    """Return the tokens of all model calls."""
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
    """Return what OpenAI's form has no place for."""
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


def create_app(answerer: Answerer, key: str | None = None) -> FastAPI:
    """Return the app. `key` is what clients must send."""
    app = open_app("Ratchet", key=key, max_body_bytes=answerer.limits.body_bytes, public=(*FILES, "/health"))
    add_health(app)
    started = int(time.time())

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(body: AnswerRequest, request: Request) -> Response:
        model = answerer.model(body.model)
        completion = Completion(answerer, model, question_of(answerer, model, body))
        if body.stream:
            return EventStream(completion.stream(body.stream_options is not None and body.stream_options.include_usage))
        return await json_response(request.receive, completion.whole())

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_shown(model, started) for model in answerer.models.values()]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        return _shown(answerer.model(name), started)

    for path, (name, kind) in FILES.items():
        text = (PAGE / name).read_bytes()
        text = STYLE.read_bytes() + text if name == "page.css" else text
        app.add_api_route(path, _file(text, kind), include_in_schema=False)
    return app


def _file(text: bytes, kind: str) -> Any:
    async def answer() -> Response:
        return Response(text, media_type=kind, headers=SECURITY)

    return answer


def _shown(model: ServedModel, created: int) -> dict[str, Any]:
    about = {"form": model.form, "policy": "base" if model.adapter is None else "adapter"}
    return {"id": model.id, "object": "model", "created": created, "owned_by": "ratchet", "ratchet": about}
