"""Trajectories as the plain data that the page's script lays out side by side.

The index of all questions is read when the page is opened, the details of a question's trajectories when it is shown.
Everything here may come from a document or a model. It goes into the page as JSON, and the script puts it there as
text, never as markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.config import RewardsConfig
from ratchet.plugins import short_name
from ratchet.records import (
    Conversation,
    Event,
    ModelCall,
    Passage,
    Question,
    QuestionChoice,
    Recall,
    Score,
    Search,
    Span,
    ToolCall,
    Trajectory,
    Turn,
    content_key,
)
from report.gather import Gathered, Section, spread
from report.messages import SpanTexts, TextTable, share_texts
from report.outcomes import OUTCOMES, outcomes_of
from report.training import TrainedRow, TrainedRows
from rewards.selection import strict_reward

MAX_OUTPUT, MAX_PASSAGE, MAX_MESSAGE = 6_000, 1_500, 20_000
"""Limits of characters of one output, of one passage and of one message."""
LIMITS = {"error": 1_000, "verdict": 300}
"""Limits of characters of other fields."""
MAX_BYTES = 24_000_000
"""The limit of bytes of the trajectories' details on one page."""
MAX_CHOICES = 5_000
"""The limit of questions in the selection's list."""

Json = dict[str, Any]


@dataclass(frozen=True)
class View:
    """What the page's script reads."""

    index: Json
    """Sections with questions and a line for each trajectory, and the selection's list."""
    shared: Json
    """Passages, and the texts that several questions' trajectories have."""
    chunks: list[Json]
    """The details of one question's trajectories in a section, in the order of its lines; `chunk` names the place."""


def make_view(gathered: Gathered, rewards: RewardsConfig, max_bytes: int = MAX_BYTES) -> View:
    """All questions, and the details of as many of them as fit in `max_bytes`."""
    passages: dict[str, Json] = {}
    choices = {choice.question_id: choice for choice in gathered.selection.questions} if gathered.selection else {}
    sections = [section for section in (gathered.sampled, gathered.evaluated) if section is not None]
    made: list[Json] = []
    chunks: list[Json] = []
    for section in sections:
        of_section = choices if section.name == "sampled" else {}
        shown, details = section_view(section, of_section, gathered.trained, rewards, passages)
        sizes = [_size(chunk) for chunk in details]
        fraction = max_bytes / len(sections) / max(1, sum(sizes))
        for i in spread(range(len(details)), max(1, int(len(details) * min(fraction, 1)))):
            shown["questions"][i]["chunk"] = len(chunks)
            chunks.append(details[i])
        made.append(shown)
    used = {i for chunk in chunks for run in chunk["runs"] for i in _passages_of(run)}
    texts = share_texts(chunks)
    shared = {"passages": {i: passage for i, passage in passages.items() if i in used}, "texts": texts}
    listed = [_choice(choice, gathered.questions.get(choice.question_id)) for choice in choices.values()]
    index = {"sections": made, "choices": listed[:MAX_CHOICES], "outcomes": OUTCOMES}
    return View(index, shared, chunks)


def _size(chunk: Json) -> int:
    return len(json.dumps(chunk, ensure_ascii=False).encode(errors="replace"))


def section_view(
    section: Section,
    choices: Mapping[str, QuestionChoice],
    trained: TrainedRows,
    rewards: RewardsConfig,
    passages: dict[str, Json],
) -> tuple[Json, list[Json]]:
    """The section for the index, and the details of each of its questions."""
    questions, chunks = [], []
    for question in section.questions:
        choice = choices.get(question.id)
        table = TextTable()
        runs: list[tuple[Json, Json]] = []
        for arm, trajectory in section.trajectories[question.id]:
            scores = section.scores.get(trajectory.key, {})
            if choice is not None:
                value = choice.rewards.get(trajectory.key)
            else:
                given = {(s.trajectory, s.name): s for s in scores.values()}
                value = strict_reward(question, trajectory, given, rewards.weights, rewards.select.keep_status)
            line = {
                "key": trajectory.key,
                "arm": arm,
                "sample": trajectory.sample,
                "status": trajectory.status,
                **({"hint": trajectory.hint} if trajectory.hint else {}),
                "reward": value,
                "kept": choice is not None and trajectory.key in choice.kept,
                "outcomes": outcomes_of(question, trajectory, scores),
                "roles": sorted({call.role for call in trajectory.model_calls}),
            }
            messages = section.messages.get(trajectory.key, ())
            runs.append((line, _run(trajectory, scores, trained, passages, messages, table)))
        if section.name == "sampled":
            runs.sort(key=lambda run: (not run[0]["kept"], -(-1.0 if run[0]["reward"] is None else run[0]["reward"])))
        questions.append(
            {
                "id": question.id,
                "text": question.text,
                "kind": question.kind,
                "answers": _expected(question),
                "label": question.label or "",
                "labels": [label.name for label in question.labels],
                "nuggets": list(question.nuggets),
                "gold": list(question.gold_ids),
                "kept": len(choice.kept) if choice else None,
                "reason": choice.reason if choice else "",
                "chunk": None,
                "runs": [line for line, _ in runs],
            }
        )
        chunks.append({"runs": [detail for _, detail in runs], "texts": table.texts})
    return {"name": section.name, "title": section.title, "total": section.total, "questions": questions}, chunks


def _run(
    trajectory: Trajectory,
    scores: Mapping[str, Score],
    trained: TrainedRows,
    passages: dict[str, Json],
    messages: Sequence[SpanTexts],
    table: TextTable,
) -> Json:
    rows = {i: trained.get((trajectory.key, i)) for i in range(len(trajectory.conversations))}
    support = [_passage(passage, passages) for passage in trajectory.passages]
    read = dict(zip((passage.id for passage in trajectory.passages), support, strict=True))
    for event in trajectory.events:
        if isinstance(event, Search | ToolCall | Recall):
            read |= {passage.id: _passage(passage, passages) for passage in event.passages}
    return {
        "policy": trajectory.policy,
        "error": cut(trajectory.error, 1_000),
        "answer": cut(trajectory.answer, MAX_OUTPUT),
        "explanation": cut(trajectory.explanation, MAX_OUTPUT),
        "turns": [_turn(turn, read) for turn in trajectory.turns],
        "stopped": cut(trajectory.stopped, 1_000),
        "scores": [
            {
                "name": short_name(s.name),
                "value": s.value,
                "reason": s.reason,
                "unparsed": s.unparsed,
                "verdicts": len(s.verdicts),
            }
            for s in scores.values()
        ],
        "seconds": trajectory.seconds,
        "events": [_event(event, rows, trajectory.conversations, passages) for event in trajectory.events],
        "conversations": [
            {
                "role": c.role,
                "trainable": c.trainable,
                "retokenised": c.retokenised,
                "text": bool(c.text),
                "spans": _spans(c, rows[i], messages[i] if i < len(messages) else (), table),
            }
            for i, c in enumerate(trajectory.conversations)
        ],
        "support": support,
    }


def _expected(question: Question) -> list[str]:
    """The expected answers; the label of a choice with its text."""
    if question.label is not None:
        right = next(label for label in question.labels if label.name == question.label)
        return [f"{right.name}: {right.meaning}" if right.meaning and not right.stance else right.name]
    return list(question.answers) or ([cut(question.reference, 400)] if question.reference else [])


def _turn(turn: Turn, read: Mapping[str, str]) -> Json:
    """A turn of a debate; `read` maps passage ids to names in the page's table."""
    return {
        **_cut_texts(turn.model_dump(exclude={"passages"})),
        "hits": [read.get(passage, passage) for passage in turn.passages],
        "scores": list(turn.scores.items()),
    }


def _event(
    event: Event,
    rows: Mapping[int, TrainedRow | None],
    conversations: tuple[Conversation, ...],
    passages: dict[str, Json],
) -> Json:
    """An event's own fields, its passages as `hits`, and of a model call whether its tokens were trained on."""
    shown = event.model_dump(exclude={"passages"})
    if isinstance(event, ToolCall):
        shown["arguments"] = json.dumps(event.arguments, ensure_ascii=False)
    if isinstance(event, Search | ToolCall | Recall):
        shown["hits"] = [[_passage(passage, passages), passage.score] for passage in event.passages]
    elif isinstance(event, ModelCall):
        row = rows.get(event.conversation)
        learnt = row is not None and event.end > event.start and row.learns(event.start, event.end)
        trainable = event.conversation < len(conversations) and conversations[event.conversation].trainable
        shown["trained"] = ("held out" if row.held_out else "trained") if learnt and row is not None else ""
        shown["frozen"] = not trainable
    return _cut_texts(shown)


def _cut_texts(fields: Json) -> Json:
    return {
        name: cut(value, LIMITS.get(name, MAX_OUTPUT)) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _passage(passage: Passage, passages: dict[str, Json]) -> str:
    """Put a passage in the table that all trajectories share; its name there, which is its id.

    The text of a web page with one id may change between searches: then each text has its own name.
    """
    made = {"title": passage.title, "document": passage.document_id, "text": cut(passage.text, MAX_PASSAGE)}
    name = passage.id
    if passages.setdefault(name, made) != made:
        name = f"{passage.id} ({content_key(made)[:8]})"
        passages[name] = made
    return name


def _passages_of(run: Json) -> set[str]:
    return {*run["support"], *(hit for event in run["events"] for hit, _ in event.get("hits", ()))}


def _spans(conversation: Conversation, row: TrainedRow | None, texts: SpanTexts, table: TextTable) -> list[list[Any]]:
    """[kind, tokens, pieces of text] of each span: its author, or for sampled tokens whether they were trained on."""
    return [
        [
            _span_kind(span, row),
            span.end - span.start,
            [table.place(cut(piece, MAX_MESSAGE)) for piece in texts[i]] if texts else None,
        ]
        for i, span in enumerate(conversation.spans)
    ]


def _span_kind(span: Span, row: TrainedRow | None) -> str:
    if not span.sampled:
        return span.author
    if not span.parsed:
        return "malformed"
    learnt = row is not None and row.learns(span.start, span.end)
    return ("held" if row.held_out else "trained") if learnt and row is not None else "sampled"


def _choice(choice: QuestionChoice, question: Question | None) -> Json:
    known = [value for value in choice.rewards.values() if value is not None]
    return {
        "id": choice.question_id,
        "text": cut(question.text, 300) if question else "",
        "kind": question.kind if question else "",
        "kept": len(choice.kept),
        "sampled": len(choice.rewards),
        "best": max(known, default=None),
        "mean": sum(known) / len(known) if known else None,
        "reason": choice.reason,
    }


def cut(text: str | None, limit: int) -> str:
    """At most `limit` characters, with the number of characters that are cut."""
    if text is None or len(text) <= limit:
        return text or ""
    return f"{text[:limit]} … [{len(text) - limit} more characters]"
