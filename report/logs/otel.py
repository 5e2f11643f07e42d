"""Trajectories as OpenTelemetry spans, named by the semantic conventions for generative AI (version 1.41).

A trajectory is one trace, whose id is the trajectory's key, so that an export that is repeated makes no second trace:

    invoke_agent SYSTEM        the trajectory, with an event `gen_ai.evaluation.result` for each score
        chat MODEL             a model call, with the role as its agent and the tokens that it cost
        retrieval SOURCE       a search, and a look into the evidence memory
        execute_tool TOOL      a tool call

What the conventions have no name for is under `ratchet.`. A trajectory records seconds since it began and no time of
day: each is placed at the time at which its pass was planned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context

from ratchet.errors import UserError
from ratchet.records import Event, ModelCall, Note, Passage, Recall, Search, ToolCall
from report.logs.source import LoggedTrajectory, batches

SPANS = 512
"""Spans of one request."""


class _Ids(IdGenerator):
    """The key of the trajectory, and the spans of it counted from 1."""

    def __init__(self) -> None:
        self.start("0")

    def start(self, key: str) -> None:
        self._trace = int(key, 16) or 1
        self._spans = count(1)

    def generate_trace_id(self) -> int:
        return self._trace

    def generate_span_id(self) -> int:
        return (self._trace ^ next(self._spans)) & 0xFFFF_FFFF_FFFF_FFFF or 1


class _Collected(SpanProcessor):
    """The spans that ended, for the exporter to take."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def export_spans(
    logged: Iterable[LoggedTrajectory],
    exporter: SpanExporter,
    run: str,
    models: Mapping[str, str],
    planned_at: float,
    with_text: bool = True,
) -> None:
    """Send every trajectory as a trace.

    `models`: by the config's name, the model's path or name. `planned_at`: seconds since 1970. `with_text`: with what
    was asked, found and said. Raises UserError where the exporter refuses.
    """
    for spans in batches(chain.from_iterable(_traces(logged, run, models, planned_at, with_text)), SPANS):
        if exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise UserError(
                "the spans were not accepted: look at the collector, and at OTEL_EXPORTER_OTLP_ENDPOINT or --endpoint"
            )


def _traces(
    logged: Iterable[LoggedTrajectory], run: str, models: Mapping[str, str], planned_at: float, with_text: bool
) -> Iterator[list[ReadableSpan]]:
    ids, collected = _Ids(), _Collected()
    resource = Resource.create({"service.name": "ratchet", "ratchet.run": run})
    provider = TracerProvider(resource=resource, id_generator=ids, shutdown_on_exit=False)
    provider.add_span_processor(collected)
    tracer = provider.get_tracer("ratchet", schema_url="https://opentelemetry.io/schemas/1.41.0")
    for one in logged:
        ids.start(one.trajectory.key)
        _trace(tracer, one, models, round(planned_at * 1e9), with_text)
        yield collected.spans
        collected.spans = []
    provider.shutdown()


def _trace(tracer: Tracer, one: LoggedTrajectory, models: Mapping[str, str], began: int, with_text: bool) -> None:
    trajectory = one.trajectory
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "ratchet",
        "gen_ai.agent.name": trajectory.system,
        "gen_ai.conversation.id": trajectory.key,
        "gen_ai.usage.input_tokens": sum(call.prompt_tokens for call in trajectory.model_calls),
        "gen_ai.usage.output_tokens": sum(call.new_tokens for call in trajectory.model_calls),
        "ratchet.question.id": trajectory.question_id,
        "ratchet.question.kind": one.question.kind,
        "ratchet.sample": trajectory.sample,
        "ratchet.seed": trajectory.seed,
        "ratchet.policy": trajectory.policy,
        "ratchet.status": trajectory.status,
    }
    attributes |= {"ratchet.reward": one.reward} if one.reward is not None else {}
    attributes |= {"ratchet.kept": one.kept} if one.kept is not None else {}
    if with_text:
        attributes["gen_ai.input.messages"] = _message("user", one.question.text)
        attributes["gen_ai.output.messages"] = _message("assistant", trajectory.answer, trajectory.status)
    root = tracer.start_span(
        f"invoke_agent {trajectory.system}", kind=SpanKind.INTERNAL, attributes=attributes, start_time=began
    )
    context = set_span_in_context(root)
    for event in trajectory.events:
        at = began + round(event.at * 1e9)
        if isinstance(event, Note):
            root.add_event("ratchet.note", {"gen_ai.agent.name": event.role, "text": event.text}, at)
            continue
        name, kind, fields = _described(event, trajectory.conversations, models, with_text)
        span = tracer.start_span(name, context, kind, fields, start_time=at)
        if error := getattr(event, "error", ""):
            span.set_status(Status(StatusCode.ERROR, error if with_text else None))
            span.set_attribute("error.type", getattr(event, "state", "malformed"))
        span.end(at + round(event.seconds * 1e9))
    end = began + round(trajectory.seconds * 1e9)
    for name, score in one.scores.items():
        told: dict[str, Any] = {"gen_ai.evaluation.name": name}
        told |= {"gen_ai.evaluation.score.value": score.value} if score.value is not None else {}
        told |= {"gen_ai.evaluation.explanation": score.reason} if score.reason and with_text else {}
        root.add_event("gen_ai.evaluation.result", told, end)
    if trajectory.status != "finished":
        root.set_status(Status(StatusCode.ERROR, trajectory.error if with_text else None))
        root.set_attribute("error.type", trajectory.status)
    root.end(end)


def _described(
    event: Event, conversations: tuple[Any, ...], models: Mapping[str, str], with_text: bool
) -> tuple[str, SpanKind, dict[str, Any]]:
    """(name, kind, attributes) of an event's span."""
    fields: dict[str, Any] = {"gen_ai.agent.name": event.role}
    if isinstance(event, ModelCall):
        known = conversations[event.conversation].model if event.conversation < len(conversations) else ""
        model = models.get(known, known)
        fields |= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "ratchet",
            "gen_ai.request.model": model,
            "gen_ai.response.finish_reasons": [event.finish_reason],
            "gen_ai.usage.input_tokens": event.prompt_tokens,
            "gen_ai.usage.output_tokens": event.new_tokens,
            "gen_ai.usage.cache_read.input_tokens": event.cached_tokens,
            "ratchet.parse": event.parse,
            "ratchet.attempt": event.attempt,
        }
        if with_text:
            fields["gen_ai.output.messages"] = _message("assistant", event.text, event.finish_reason)
        return f"chat {model}", SpanKind.CLIENT, fields
    if isinstance(event, ToolCall):
        fields |= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": event.tool,
            "gen_ai.tool.type": "extension",
            "ratchet.source": event.source,
        }
        if with_text:
            result = event.text or _documents(event.passages)
            fields["gen_ai.tool.call.arguments"] = json.dumps(event.arguments, ensure_ascii=False)
            fields["gen_ai.tool.call.result"] = result
        return f"execute_tool {event.tool}", SpanKind.INTERNAL, fields
    assert isinstance(event, Search | Recall)
    source, query = ("memory", ", ".join(event.entities)) if isinstance(event, Recall) else (event.source, event.query)
    fields |= {"gen_ai.operation.name": "retrieval", "gen_ai.data_source.id": source}
    if with_text:
        fields |= {"gen_ai.retrieval.query.text": query, "gen_ai.retrieval.documents": _documents(event.passages)}
    return f"retrieval {source}", SpanKind.CLIENT, fields


def _message(role: str, text: str, finish_reason: str = "") -> str:
    message = {"role": role, "parts": [{"type": "text", "content": text}]}
    return json.dumps([message | ({"finish_reason": finish_reason} if finish_reason else {})], ensure_ascii=False)


def _documents(passages: tuple[Passage, ...]) -> str:
    return json.dumps([{"id": passage.id, "score": passage.score} for passage in passages])
