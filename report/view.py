"""Trajectories as the plain data that the page's script lays out side by side.

The index of all questions is read when the page is opened, the details of a question's trajectories when it is shown.
Everything here may come from a document or a model. It goes into the page as compressed JSON, and the script puts it
there as text, never as markup.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.core.config import Config, ModelConfig
from ratchet.core.errors import UserError
from ratchet.core.plugins import short_name
from ratchet.core.records import (
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
from ratchet.inference.chat import ChatFormat
from ratchet.inference.chat_formats import open_chat_format
from ratchet.inference.thoughts import split_thought
from ratchet.report.gather import Gathered, Section, spread
from ratchet.report.records import Line, TrainedRow, TrainedRows, read_trained
from ratchet.report.terms import OUTCOMES, with_null_scores

MAX_OUTPUT, MAX_PASSAGE, MAX_MESSAGE = 6_000, 1_500, 20_000
"""Limits of characters of one output, of one passage and of one message."""
LIMITS = {"error": 1_000, "verdict": 300}
MAX_BYTES = 100_000_000
"""The limit of bytes, as the run folder has them, of the trajectories whose details are on one page."""
GROUP_BYTES = 1_000_000
"""About how many of these bytes are compressed together: more find more repetitions, and take longer to open."""
MAX_CHOICES = 5_000
"""The limit of questions in the selection's list."""

Json = dict[str, Any]


@dataclass(frozen=True)
class View:
    """The data that the page's script reads."""

    index: Json
    """Sections with questions and a line for each trajectory, and the selection's list."""
    chunks: list[str]
    """Details of several questions' trajectories, packed; the `chunk` of a question is the index."""
    problems: tuple[str, ...] = ()
    """The reasons why messages cannot be shown."""


def make_index(gathered: Gathered) -> Json:
    """All questions without details, and the selection's list."""
    choices = gathered.selection.questions if gathered.selection else ()
    return {
        "sections": [section_view(section) for section in gathered.sections],
        "choices": [_choice(choice, gathered.questions.get(choice.question_id)) for choice in choices[:MAX_CHOICES]],
        "outcomes": OUTCOMES,
    }


def make_view(gathered: Gathered, details: DetailReader, max_bytes: int = MAX_BYTES) -> View:
    """All questions, and the details of as many of them as fit in `max_bytes`."""
    index = make_index(gathered)
    chunks: list[str] = []
    keys = [line.trajectory.key for s in gathered.sections for lines in s.lines.values() for _, line in lines]
    trained = details.trained(gathered, keys)
    for section, shown in zip(gathered.sections, index["sections"], strict=True):
        sizes = [sum(line.place.length for _, line in section.lines[question.id]) for question in section.questions]
        fraction = max_bytes / len(gathered.sections) / max(1, sum(sizes))
        places = spread(range(len(sizes)), max(1, int(len(sizes) * min(fraction, 1))))
        for group in _groups(places, sizes):
            for i in group:
                shown["questions"][i]["chunk"] = len(chunks)
            chunks.append(pack(details.read(section, [section.questions[i] for i in group], trained)))
    return View(index, chunks, tuple(details.problems))


def _groups(places: Iterable[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """The places in groups of about GROUP_BYTES each."""
    group: list[int] = []
    for place in places:
        if group and sum(sizes[i] for i in group) + sizes[place] > GROUP_BYTES:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def pack(value: Any) -> str:
    """JSON as the page holds it and its script unpacks it: compressed, in characters that have no meaning in HTML."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode()


def section_view(section: Section) -> Json:
    """The section for the index."""
    questions = [_question(section, question) for question in section.questions]
    return {"name": section.name, "title": section.title, "total": section.total, "questions": questions}


def _question(section: Section, question: Question) -> Json:
    choice = section.choices.get(question.id)
    return {
        "id": question.id,
        "text": question.text,
        "kind": question.kind,
        "answers": expected_answers(question),
        "label": question.label or "",
        "labels": [label.name for label in question.labels],
        "nuggets": list(question.nuggets),
        "gold": list(question.gold_ids),
        "kept": len(choice.kept) if choice else None,
        "reason": choice.reason if choice else "",
        "chunk": None,
        "runs": [_line(section, arm, line) for arm, line in _in_order(section, question)],
    }


def _line(section: Section, arm: str, line: Line) -> Json:
    trajectory = line.trajectory
    return {
        "key": trajectory.key,
        "arm": arm,
        "sample": trajectory.sample,
        "status": trajectory.status,
        "reward": section.rewards[trajectory.key],
        "kept": trajectory.key in section.kept,
        "outcomes": with_null_scores(line.outcomes, section.scores[trajectory.key].values()),
        "roles": line.roles,
    }


def _in_order(section: Section, question: Question) -> Sequence[tuple[str, Line]]:
    """A question's lines as they are shown: of sampled ones those that were kept first, and the best ones."""
    if section.name != "sampled":
        return section.lines[question.id]

    def place(item: tuple[str, Line]) -> tuple[bool, float]:
        reward = section.rewards[item[1].trajectory.key]
        return item[1].trajectory.key not in section.kept, -(-1.0 if reward is None else reward)

    return sorted(section.lines[question.id], key=place)


class DetailReader:
    """Reads what the page shows of a question's trajectories. Tokenizers are loaded with the first one."""

    def __init__(self, config: Config) -> None:
        self._config, self._decoder = config, MessageDecoder(config.models)

    @property
    def problems(self) -> list[str]:
        """The reasons why messages cannot be shown."""
        return self._decoder.problems

    def trained(self, gathered: Gathered, keys: Iterable[str]) -> TrainedRows:
        choices = gathered.selection.choices if gathered.selection else ()
        question_of = {key: choice.question_id for choice in choices for key in choice.rewards}
        held_out, seed = self._config.training.dev_fraction, self._config.seed
        return read_trained(gathered.folder.rows, set(keys), question_of, held_out, seed)

    def read(self, section: Section, questions: Iterable[Question], trained: TrainedRows) -> Json:
        """{runs, texts, passages}: the questions' trajectories, and the texts and passages that these name."""
        table = TextTable()
        passages: dict[str, Json] = {}
        runs = []
        for line in (line for question in questions for _, line in _in_order(section, question)):
            trajectory = line.read()
            messages = [self._decoder.decode(conversation) for conversation in trajectory.conversations]
            scores = section.scores[trajectory.key].values()
            runs.append(_run(trajectory, scores, trained, passages, messages, table))
        return {"runs": runs, "texts": table.texts, "passages": passages}


def _run(
    trajectory: Trajectory,
    scores: Iterable[Score],
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
        "key": trajectory.key,
        "error": cut(trajectory.error, 1_000),
        "answer": cut(trajectory.answer, MAX_OUTPUT),
        "explanation": cut(trajectory.explanation, MAX_OUTPUT),
        "turns": [_turn(turn, read) for turn in trajectory.turns],
        "stopped": cut(trajectory.stopped, 1_000),
        "scores": [
            {
                "name": short_name(s.name),
                "value": s.value,
                "reason": s.reason or ", ".join(f"{role} {value:g}" for role, value in s.roles.items()),
                "unparsed": s.unparsed,
                "verdicts": len(s.verdicts),
            }
            for s in scores
        ],
        "events": [_event(event, rows, trajectory.conversations, passages) for event in trajectory.events],
        "conversations": [
            {
                "role": c.role,
                "trainable": c.trainable,
                "text": bool(c.text),
                "spans": _spans(c, rows[i], messages[i] if i < len(messages) else (), table),
            }
            for i, c in enumerate(trajectory.conversations)
        ],
        "rows": rows_text(trajectory),
        "support": support,
    }


def rows_text(trajectory: Trajectory) -> str:
    """The number of token rows of a trajectory, with the reason; empty where no conversation became several."""
    trainable = [conversation for conversation in trajectory.conversations if conversation.trainable]
    rewritten = sum(conversation.rewritten for conversation in trainable)
    if not rewritten:
        return ""
    dialogues = len(trainable) - rewritten
    return (
        f"{len(trainable)} token rows of {dialogues} dialogue{'s' * (dialogues > 1)}: the chat template writes earlier "
        "turns in another way later on, as it drops their thoughts, so what the model was shown is not one row."
    )


def expected_answers(question: Question) -> list[str]:
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
    """An event's own fields, its passages as `hits`, and of a model call whether its tokens were trained on.

    Times and scores have the digits that are shown: the others are most of what cannot be compressed.
    """
    shown = event.model_dump(exclude={"passages", "seconds"}) | {"at": round(event.at, 1)}
    if isinstance(event, ToolCall):
        shown["arguments"] = json.dumps(event.arguments, ensure_ascii=False)
    if isinstance(event, Search | ToolCall | Recall):
        shown["hits"] = [[_passage(passage, passages), round(passage.score, 2)] for passage in event.passages]
    elif isinstance(event, ModelCall):
        row = rows.get(event.conversation)
        conversation = conversations[event.conversation] if event.conversation < len(conversations) else None
        own = [span for span in conversation.spans if event.start <= span.start < event.end] if conversation else []
        learnt = row is not None and any(span.sampled and row.learns(span.start, span.end) for span in own)
        trainable = conversation is not None and conversation.trainable
        shown["trained"] = ("held out" if row.held_out else "trained") if learnt and row is not None else ""
        shown["frozen"] = not trainable
        if event.thought_tokens:
            shown["thought"], shown["text"] = split_thought(event.text)
    return _cut_texts(shown)


def _cut_texts(fields: Json) -> Json:
    return {
        name: cut(value, LIMITS.get(name, MAX_OUTPUT)) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _passage(passage: Passage, passages: dict[str, Json]) -> str:
    """Put a passage in the table that its group of questions shares; its name there, which is its id.

    The text of a web page with one id may change between searches: then each text has its own name.
    """
    made = {"title": passage.title, "document": passage.document_id, "text": cut(passage.text, MAX_PASSAGE)}
    name = passage.id
    if passages.setdefault(name, made) != made:
        name = f"{passage.id} ({content_key(made)[:8]})"
        passages[name] = made
    return name


def _spans(conversation: Conversation, row: TrainedRow | None, texts: SpanTexts, table: TextTable) -> list[list[Any]]:
    """[kind, tokens, pieces of text] of each span: its author, or for sampled tokens whether they were trained on. A
    thought has a fourth part, true."""
    return [
        [
            _span_kind(span, row),
            span.end - span.start,
            [table.place(cut(piece, MAX_MESSAGE)) for piece in texts[i]] if texts else None,
            *([True] if span.thought else []),
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


SpanTexts = tuple[tuple[str, ...], ...]
"""For each span the pieces of its text: ordinary text and control tokens in turn, ordinary text first."""


class MessageDecoder:
    """Decodes conversations with the tokenizers of the config's models. Each is loaded when it is first needed."""

    def __init__(self, models: Mapping[str, ModelConfig]) -> None:
        self.models = models
        self._formats: dict[str, ChatFormat | None] = {}
        self._repeats: dict[tuple[str, tuple[int, ...], bool], tuple[str, ...]] = {}
        self.problems: list[str] = []
        """One sentence for each model whose messages cannot be shown."""

    def decode(self, conversation: Conversation) -> SpanTexts:
        """The texts of a conversation's spans; empty where the model's tokenizer is not available."""
        if conversation.text:
            pieces = [conversation.text[span.start : span.end] for span in conversation.spans]
            named = zip(conversation.spans, pieces, strict=True)
            return tuple(("", piece) if span.author == "template" else (piece,) for span, piece in named)
        if conversation.model not in self._formats:
            self._formats[conversation.model] = self._load(conversation.model)
        chat = self._formats[conversation.model]
        if chat is None:
            return ()
        texts = []
        for span in conversation.spans:
            ids = conversation.ids[span.start : span.end]
            if span.author in ("template", "system"):  # the same in many conversations
                texts.append(self._repeated(conversation.model, chat, ids, span.author == "template"))
            else:
                texts.append(_pieces(chat, ids))
        return tuple(texts)

    def _repeated(self, model: str, chat: ChatFormat, ids: tuple[int, ...], template: bool) -> tuple[str, ...]:
        key = (model, ids, template)
        if key not in self._repeats:
            self._repeats[key] = ("", chat.decode(ids)) if template else _pieces(chat, ids)
        return self._repeats[key]

    def _load(self, name: str) -> ChatFormat | None:
        try:
            if name not in self.models:
                raise UserError(f"the config has no model {name!r}")
            model = self.models[name]
            return open_chat_format(model)
        except UserError as error:
            self.problems.append(f"The messages of model {name} cannot be shown: {error}")
            return None


def _pieces(chat: ChatFormat, ids: tuple[int, ...]) -> tuple[str, ...]:
    runs: list[list[int]] = [[]]
    for i in ids:
        if (i in chat.control_ids) != (len(runs) % 2 == 0):
            runs.append([])
        runs[-1].append(i)
    return tuple(chat.decode(run) if run else "" for run in runs)


class TextTable:
    """Texts of several trajectories, each stored once and named by its position."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    @property
    def texts(self) -> list[str]:
        return list(self._places)
