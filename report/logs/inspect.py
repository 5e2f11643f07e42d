"""Trajectories as logs of Inspect (UK AI Security Institute), written by its own package, for `inspect view`.

One `.eval` file for up to SAMPLES trajectories of a store, so that memory stays small. A question is a sample, and its
n-th sampling the n-th epoch. The events are Inspect's: model calls with the turns before them, tool calls, notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from inspect_ai.dataset import Sample
from inspect_ai.event import InfoEvent, ModelEvent, SampleInitEvent, ScoreEvent, ToolEvent
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalError,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalSampleLimit,
    EvalScore,
    EvalSpec,
    EvalStats,
    condense_sample,
    write_eval_log,
)
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.scorer import Score as InspectScore
from inspect_ai.tool import ToolCallError

from ratchet.records import ModelCall, Note, Question, Recall, Score, ToolCall, Trajectory, content_key
from report.logs.source import LoggedTrajectory, batches
from report.messages import MessageDecoder
from report.stores import StoredPass

SAMPLES = 1_000
"""Trajectories of one file."""
STOPS = {"length": "max_tokens", "context": "model_length"}
"""Our reasons for the end of a completion to Inspect's; any other is a stop."""


def write_inspect(
    folder: Path, stored: StoredPass, logged: Iterable[LoggedTrajectory], decoder: MessageDecoder
) -> Iterator[Path]:
    """Write the logs of one store and return their paths as they are finished.

    Every trajectory counts as begun when its store was planned: it records no time of day.
    """
    began = datetime.fromtimestamp(stored.planned_at, UTC)
    models = {name: model.path for name, model in decoder.models.items()}
    for number, group in enumerate(batches(logged, SAMPLES), 1):
        samples = [condense_sample(_sample(each, models, decoder, began)) for each in group]
        path = folder / f"{stored.name.replace('/', '_')}-{number:03d}.eval"
        temporary = folder / f".{path.name}"
        write_eval_log(_log(stored, number, group, samples, models, began), temporary)
        yield temporary.replace(path)


def _log(
    stored: StoredPass, number: int, group: tuple[LoggedTrajectory, ...], samples: list[EvalSample],
    models: Mapping[str, str], began: datetime,
) -> EvalLog:  # fmt: skip
    first = group[0].trajectory
    names = sorted({name for each in group for name in each.scores})
    identity = content_key("inspect", stored.name, number, first.key)
    ids = list(dict.fromkeys(str(sample.id) for sample in samples))
    metadata = {"store": stored.name, "policy": first.policy, "system": first.system}
    return EvalLog(
        status="success",
        eval=EvalSpec(
            eval_id=identity, run_id=identity, created=began.isoformat(), task=f"{stored.title} ({first.system})",
            task_id=identity, solver=first.system,
            dataset=EvalDataset(name=stored.split, samples=len(ids), sample_ids=ids),
            model=next(iter(models.values()), "none"), config=EvalConfig(epochs=max(s.epoch for s in samples)),
            metadata=metadata,
        ),
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=sum(each.trajectory.status == "finished" for each in group),
            scores=[_mean(name, [each.scores[name] for each in group if name in each.scores]) for name in names],
        ),
        stats=EvalStats(started_at=began.isoformat(), completed_at=began.isoformat()),
        samples=samples,
    )  # fmt: skip


def _mean(name: str, scores: list[Score]) -> EvalScore:
    values = [score.value for score in scores if score.value is not None]
    metrics = {"mean": EvalMetric(name="mean", value=fmean(values))} if values else {}
    return EvalScore(
        name=name, scorer=name, scored_samples=len(values), unscored_samples=len(scores) - len(values), metrics=metrics
    )


def _sample(
    logged: LoggedTrajectory, models: Mapping[str, str], decoder: MessageDecoder, began: datetime
) -> EvalSample:
    trajectory, question = logged.trajectory, logged.question
    dialogues = [_turns(trajectory, number, decoder) for number in range(len(trajectory.conversations))]
    scores = {name: _score(score, trajectory) for name, score in logged.scores.items()}
    target = _target(question)
    events: list[Any] = [
        SampleInitEvent(timestamp=began, working_start=0, sample=Sample(input=question.text, target=target), state={})
    ]
    usage: dict[str, ModelUsage] = {}
    for number, event in enumerate(trajectory.events):
        events.append(_event(number, event, trajectory, dialogues, models, began))
        if isinstance(event, ModelCall):
            name = _model_of(event, trajectory, models)
            usage[name] = usage.get(name, ModelUsage()) + _usage(event)
    end = began + timedelta(seconds=trajectory.seconds)
    events += [
        ScoreEvent(timestamp=end, working_start=trajectory.seconds, score=score, target=target, scorer=name)
        for name, score in scores.items()
    ]
    failed, stopped = trajectory.status in ("failed", "unparsed"), trajectory.status == "out_of_budget"
    return EvalSample(
        id=question.id, epoch=trajectory.sample + 1, input=question.text, target=target, scores=scores,
        messages=[message for turns in dialogues[:1] for _, message in turns],
        output=ModelOutput.from_content(next(iter(models.values()), "none"), trajectory.answer),
        metadata={
            "trajectory": trajectory.key, "status": trajectory.status, "reward": logged.reward, "kept": logged.kept,
            "kind": question.kind, "policy": trajectory.policy, "seed": trajectory.seed,
            "explanation": trajectory.explanation, "stopped": trajectory.stopped,
        },
        events=events, model_usage=usage, uuid=trajectory.key, started_at=began.isoformat(),
        completed_at=end.isoformat(), total_time=trajectory.seconds, working_time=trajectory.seconds,
        error=EvalError(message=f"{trajectory.status}: {trajectory.error}", traceback="", traceback_ansi="")
        if failed else None,
        limit=EvalSampleLimit(type="custom", limit=1, reason=trajectory.error or "the budget was reached")
        if stopped else None,
    )  # fmt: skip


def _target(question: Question) -> str | list[str]:
    return question.label or list(question.answers) or question.reference or ""


def _turns(trajectory: Trajectory, number: int, decoder: MessageDecoder) -> list[tuple[int, ChatMessage]]:
    """(end of the turn in the conversation, message) of what the model read and wrote; empty without its tokenizer."""
    conversation = trajectory.conversations[number]
    turns: list[tuple[int, ChatMessage]] = []
    kinds = {"system": ChatMessageSystem, "user": ChatMessageUser}
    for span, pieces in zip(conversation.spans, decoder.decode(conversation) or (), strict=False):
        if span.author != "template":
            text = "".join(pieces[::2])  # every second piece is a control token
            place = f"{trajectory.key}-{number}-{span.start}"
            turns.append((span.end, kinds.get(span.author, ChatMessageAssistant)(content=text, id=place)))
    return turns


def _event(
    number: int, event: Any, trajectory: Trajectory, dialogues: list[list[tuple[int, ChatMessage]]],
    models: Mapping[str, str], began: datetime,
) -> Any:  # fmt: skip
    at = began + timedelta(seconds=event.at)
    common: dict[str, Any] = {
        "timestamp": at, "working_start": event.at, "uuid": f"{trajectory.key}-{number}",
        "metadata": {"role": event.role},
    }  # fmt: skip
    if isinstance(event, Note):
        return InfoEvent(source=event.role, data=event.text, **common)
    common |= {"completed": at + timedelta(seconds=event.seconds), "working_time": event.seconds}
    if isinstance(event, ModelCall):
        name = _model_of(event, trajectory, models)
        turns = dialogues[event.conversation] if event.conversation < len(dialogues) else []
        choice = ChatCompletionChoice(
            message=ChatMessageAssistant(content=event.text, source="generate", model=name),
            stop_reason=STOPS.get(event.finish_reason, "stop"),
        )
        return ModelEvent(
            model=name, role=event.role, input=[message for end, message in turns if end <= event.start], tools=[],
            tool_choice="none", config=GenerateConfig(), error=event.error or None,
            output=ModelOutput(model=name, choices=[choice], usage=_usage(event), time=event.seconds), **common,
        )  # fmt: skip
    if isinstance(event, ToolCall):
        function, arguments = event.tool, event.arguments
    elif isinstance(event, Recall):
        function, arguments = "memory", {"entities": list(event.entities)}
    else:
        function, arguments = event.source, {"query": event.query, "k": event.k, "offset": event.offset}
    passages = "\n\n".join(f"[{p.id}] {p.title}\n{p.text}" for p in event.passages)
    error = getattr(event, "error", "")
    return ToolEvent(
        id=common["uuid"], function=function, arguments=arguments, result=getattr(event, "text", "") or passages,
        error=ToolCallError("unknown", error) if error else None, failed=bool(error) or None, **common,
    )  # fmt: skip


def _model_of(event: ModelCall, trajectory: Trajectory, models: Mapping[str, str]) -> str:
    name = trajectory.conversations[event.conversation].model if trajectory.conversations else ""
    return models.get(name, name) or "none"


def _usage(event: ModelCall) -> ModelUsage:
    return ModelUsage(
        input_tokens=event.prompt_tokens - event.cached_tokens,
        output_tokens=event.new_tokens,
        total_tokens=event.prompt_tokens + event.new_tokens,
        input_tokens_cache_read=event.cached_tokens,
        reasoning_tokens=event.thought_tokens or None,
    )


def _score(score: Score, trajectory: Trajectory) -> InspectScore:
    if score.value is None:
        return InspectScore.unscored(answer=trajectory.answer, explanation=score.reason)
    return InspectScore(value=score.value, answer=trajectory.answer, explanation=score.reason or None)
