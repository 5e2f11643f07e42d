"""Trajectories as the plain data that the page's script lays out side by side.

Everything here may come from a document or a model. It goes into the page as JSON, and the script puts it there as
text, never as markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ratchet.records import (
    Conversation,
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
from report.training import TrainedRow, TrainedRows
from rewards.selection import counted_reward

MAX_OUTPUT, MAX_PASSAGE = 6_000, 1_500
"""Characters of one output, of one passage."""
MAX_BYTES = 12_000_000
"""Of trajectories on one page."""
MAX_CHOICES = 5_000
"""Questions in the selection's list."""

Json = dict[str, Any]


def make_view(gathered: Gathered, weights: Mapping[str, float], max_bytes: int = MAX_BYTES) -> Json:
    """{sections, passages, choices}: what the page's script reads."""
    passages: dict[str, Json] = {}
    choices = {choice.question_id: choice for choice in gathered.selection.questions} if gathered.selection else {}
    sections = [section for section in (gathered.sampled, gathered.evaluated) if section is not None]
    made = [
        _section(section, choices if section.name == "sampled" else {}, gathered.trained, weights, passages)
        for section in sections
    ]
    for section in made:
        sizes = [len(json.dumps(question)) for question in section["questions"]]
        share = max_bytes / len(made) / max(1, sum(sizes))
        if share < 1:
            section["questions"] = spread(section["questions"], max(1, int(len(sizes) * share)))
    used = {i for s in made for q in s["questions"] for run in q["runs"] for i in _passages_of(run)}
    return {
        "sections": made,
        "passages": {i: passage for i, passage in passages.items() if i in used},
        "choices": [_choice(choice, gathered.questions.get(choice.question_id)) for choice in choices.values()][
            :MAX_CHOICES
        ],
    }


def _section(
    section: Section,
    choices: Mapping[str, QuestionChoice],
    trained: TrainedRows,
    weights: Mapping[str, float],
    passages: dict[str, Json],
) -> Json:
    questions = []
    for question in section.questions:
        choice = choices.get(question.id)
        runs = []
        for arm, trajectory in section.trajectories[question.id]:
            scores = section.scores.get(trajectory.key, {})
            if choice is not None:
                value = choice.rewards.get(trajectory.key)
            else:
                given = {(s.trajectory, s.name): s for s in scores.values()}
                value = counted_reward(question, trajectory, given, weights)
            kept = choice is not None and trajectory.key in choice.kept
            runs.append(_run(arm, trajectory, value, kept, scores, trained, passages))
        if section.name == "sampled":
            runs.sort(key=lambda run: (not run["kept"], -(run["reward"] if run["reward"] is not None else -1.0)))
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
                "runs": runs,
            }
        )
    return {"name": section.name, "title": section.title, "total": section.total, "questions": questions}


def _run(
    arm: str,
    trajectory: Trajectory,
    value: float | None,
    kept: bool,
    scores: Mapping[str, Score],
    trained: TrainedRows,
    passages: dict[str, Json],
) -> Json:
    rows = {i: trained.get((trajectory.key, i)) for i in range(len(trajectory.conversations))}
    support = [_passage(passage, passages) for passage in trajectory.passages]
    read = dict(zip((passage.id for passage in trajectory.passages), support, strict=True))
    for event in trajectory.events:
        if isinstance(event, Search | ToolCall | Recall):
            read |= {passage.id: _passage(passage, passages) for passage in event.passages}
    return {
        "key": trajectory.key,
        "arm": arm,
        "sample": trajectory.sample,
        "policy": trajectory.policy,
        "status": trajectory.status,
        "error": cut(trajectory.error, 1_000),
        "answer": cut(trajectory.answer, MAX_OUTPUT),
        "explanation": cut(trajectory.explanation, MAX_OUTPUT),
        "turns": [_turn(turn, read) for turn in trajectory.turns],
        "stopped": cut(trajectory.stopped, 1_000),
        "reward": value,
        "kept": kept,
        "scores": [
            {"name": s.name, "value": s.value, "reason": s.reason, "unparsed": s.unparsed, "verdicts": len(s.verdicts)}
            for s in scores.values()
        ],
        "seconds": trajectory.seconds,
        "events": [_event(event, rows, trajectory.conversations, passages) for event in trajectory.events],
        "conversations": [
            {"role": c.role, "trainable": c.trainable, "retokenised": c.retokenised, "spans": _spans(c, rows[i])}
            for i, c in enumerate(trajectory.conversations)
        ],
        "support": support,
    }


def _expected(question: Question) -> list[str]:
    """What is right, for the reader: a choice among answers with its text."""
    if question.label is not None:
        right = next(label for label in question.labels if label.name == question.label)
        return [f"{right.name}: {right.meaning}" if right.meaning and not right.stance else right.name]
    return list(question.answers) or ([cut(question.reference, 400)] if question.reference else [])


def _turn(turn: Turn, read: Mapping[str, str]) -> Json:
    """`read`: what the trajectory met, by passage id."""
    return {
        "round": turn.round,
        "speaker": turn.speaker,
        "query": cut(turn.query, MAX_OUTPUT),
        "hits": [read.get(passage, passage) for passage in turn.passages],
        "said": cut(turn.said, MAX_OUTPUT),
        "verdict": cut(turn.verdict, 300),
        "scores": [[name, value] for name, value in turn.scores.items()],
    }


def _event(
    event: Any,
    rows: Mapping[int, TrainedRow | None],
    conversations: tuple[Conversation, ...],
    passages: dict[str, Json],
) -> Json:
    if isinstance(event, Search):
        return {
            "kind": "search",
            "role": event.role,
            "source": event.source,
            "query": cut(event.query, MAX_OUTPUT),
            "k": event.k,
            "offset": event.offset,
            "hits": _hits(event.passages, passages),
            "at": event.at,
            "seconds": event.seconds,
        }
    if isinstance(event, ToolCall):
        return {
            "kind": "tool",
            "role": event.role,
            "source": event.source,
            "tool": event.tool,
            "arguments": cut(json.dumps(event.arguments, ensure_ascii=False), MAX_OUTPUT),
            "text": cut(event.text, MAX_OUTPUT),
            "hits": _hits(event.passages, passages),
            "error": cut(event.error, 1_000),
            "at": event.at,
            "seconds": event.seconds,
        }
    if isinstance(event, Recall):
        return {
            "kind": "recall",
            "role": event.role,
            "entities": list(event.entities),
            "hits": _hits(event.passages, passages),
            "at": event.at,
            "seconds": event.seconds,
        }
    if isinstance(event, ModelCall):
        row = rows.get(event.conversation)
        learnt = row is not None and event.end > event.start and all(row.mask[event.start : event.end])
        trainable = event.conversation < len(conversations) and conversations[event.conversation].trainable
        return {
            "kind": "model",
            "role": event.role,
            "text": cut(event.text, MAX_OUTPUT),
            "parse": event.parse,
            "error": cut(event.error, 1_000),
            "attempt": event.attempt,
            "finish": event.finish_reason,
            "prompt": event.prompt_tokens,
            "cached": event.cached_tokens,
            "new": event.new_tokens,
            "at": event.at,
            "seconds": event.seconds,
            "trained": ("held out" if row.held_out else "trained") if learnt and row is not None else "",
            "frozen": not trainable,
        }
    return {"kind": "note", "role": event.role, "text": cut(event.text, MAX_OUTPUT), "at": event.at}


def _hits(found: tuple[Passage, ...], passages: dict[str, Json]) -> list[list[Any]]:
    return [[_passage(passage, passages), passage.score] for passage in found]


def _passage(passage: Passage, passages: dict[str, Json]) -> str:
    """Put a passage in the table that all trajectories share; its name there, which is its id.

    What the web says under one id may change from one search to the next: then each text has a name of its own.
    """
    made = {"title": passage.title, "document": passage.document_id, "text": cut(passage.text, MAX_PASSAGE)}
    name = passage.id
    if passages.setdefault(name, made) != made:
        name = f"{passage.id} ({content_key(made)[:8]})"
        passages[name] = made
    return name


def _passages_of(run: Json) -> set[str]:
    return {*run["support"], *(hit for event in run["events"] for hit, _ in event.get("hits", ()))}


def _spans(conversation: Conversation, row: TrainedRow | None) -> list[list[Any]]:
    """[kind, tokens] runs of a conversation: its authors, and for sampled tokens what became of them."""
    runs: list[list[Any]] = []
    for span in conversation.spans:
        kind = _span_kind(span, row)
        if runs and runs[-1][0] == kind:
            runs[-1][1] += span.end - span.start
        else:
            runs.append([kind, span.end - span.start])
    return runs


def _span_kind(span: Span, row: TrainedRow | None) -> str:
    if not span.sampled:
        return span.author
    if not span.parsed:
        return "malformed"
    learnt = row is not None and all(row.mask[span.start : span.end])
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
    """At most `limit` characters, saying how many are left out."""
    if text is None or len(text) <= limit:
        return text or ""
    return f"{text[:limit]} … [{len(text) - limit} more characters]"
