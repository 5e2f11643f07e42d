"""The nouns of Ratchet: frozen, typed records that every stage reads and writes.

Raw output is immutable: a stage never changes another stage's records, it writes its own that point at them by key. On
disk a record is one JSON line; token rows are Parquet.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def content_key(*parts: Any) -> str:
    """Return a 32-digit hexadecimal digest of JSON-able parts: equal content, equal key, on any machine."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_jsonable)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


def _jsonable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"cannot make a content key of a {type(value).__name__}")


def document_id(text: str) -> str:
    """Normalise a document's id: Unicode's NFC, without the brackets that FineWeb and some question sets write around
    it (<urn:uuid:1>)."""
    text = unicodedata.normalize("NFC", text)
    return text[1:-1] if text.startswith("<urn:") and text.endswith(">") else text


@dataclass(frozen=True)
class Document:
    """A document of a corpus. Pieces of evidence with one id are parts of one document."""

    id: str
    text: str
    title: str = ""


DocumentId = Annotated[str, AfterValidator(document_id)]


class Record(BaseModel):
    """The base of all records: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Stance = Literal["true", "false", "unknown", "mixed", ""]
"""A label's verdict on a claim; empty for a choice among answers."""


class Label(Record):
    """One of a task's labels."""

    name: str
    meaning: str
    """A prompt's text of the label: when it is the right one, or the text of a choice."""
    stance: Stance = ""


class Question(Record):
    """A question or claim with everything that is known about the right answer."""

    id: str
    text: str
    form: Literal["question", "claim"] = "question"
    """The kind of text, which a prompt names."""
    answers: tuple[str, ...] = ()
    """Accepted short answers: any of them is right."""
    reference: str | None = None
    """A long-form reference answer, from which nuggets are drawn."""
    nuggets: tuple[str, ...] = ()
    """Facts a good answer contains, when the benchmark gives them."""
    gold_ids: tuple[DocumentId, ...] = ()
    """Documents that hold the answer."""
    gold_titles: tuple[str, ...] = ()
    """Titles of documents that hold the answer, where a benchmark names pages rather than documents."""
    labels: tuple[Label, ...] = ()
    """All labels of a task with a closed set of answers. The answer is a label's name."""
    label: str | None = None
    """The right one's name."""
    kind: str = ""
    """The benchmark's own category (one hop, comparison...), for breakdowns."""

    def key(self) -> str:
        return content_key(self)

    @property
    def asked(self) -> Question:
        """The part that a system sees: nothing that whoever asks it in use does not know."""
        return Question(id=self.id, text=self.text, form=self.form, labels=self.labels)

    @property
    def gold_answer(self) -> str:
        """The label, else the first accepted answer, else the reference; empty where none is known."""
        return self.label or next(iter(self.answers), self.reference or "")

    @model_validator(mode="after")
    def _label_is_known(self) -> Question:
        names = [label.name for label in self.labels]
        if self.label is not None and self.label not in names:
            raise ValueError(f"label {self.label!r} is not among its labels ({', '.join(names) or 'none'})")
        if len({name.casefold() for name in names}) < len(names):
            raise ValueError(f"labels must differ by more than case: {', '.join(names)}")
        return self


def questions_digest(questions: Iterable[Question]) -> str:
    """Return a digest of questions with all that belongs to them, in their order."""
    return content_key("questions", [question.key() for question in questions])


class PartRank(Record):
    """The place of a passage in one of the rankings that a search combines."""

    rank: int
    """Counted from 1."""
    score: float


class Passage(Record):
    """A chunk as a search result."""

    id: str
    """Chunk id: unique in the index. It stands for one text (`with_text`)."""
    document_id: DocumentId
    text: str
    title: str = ""
    score: float = 0.0
    ranks: dict[str, PartRank] = Field(default={}, exclude_if=lambda ranks: not ranks)
    """Of a fused or reranked search: the passage's rank and score in each part that found it, by the part's name."""

    def with_text(self, text: str) -> Passage:
        """Return the passage with another text, such as its beginning or a summary; its id says so."""
        if text == self.text:
            return self
        return self.model_copy(update={"id": f"{self.id}~{content_key(text)[:8]}", "text": text})


def with_title(title: str, text: str) -> str:
    """Put a title above a text, as it is indexed and encoded."""
    return f"{title}\n{text}" if title and text else title or text


Author = Literal["template", "system", "user", "assistant"]


class Span(Record):
    """content[start:end] of a conversation and who wrote it.

    `sampled` marks tokens that the model itself emitted, its end-of-turn token included. `parsed` is False for a
    sampled action that broke its schema or was cut off: it stays in the log and is never trained on. `thought` marks
    what the model thought before it answered, in the turn in which it did, up to what closes the thought. Where a
    budget closed it, the closing is a span that is not sampled.
    """

    start: int
    end: int
    author: Author
    sampled: bool = False
    parsed: bool = True
    thought: bool = Field(False, exclude_if=lambda thought: not thought)


class Conversation(Record, extra="ignore"):
    """One role's dialogue with its model, as the token ids that the model saw and emitted, or as text. Earlier versions
    wrote more."""

    role: str
    model: str
    """Name of the model in the config that played the role."""
    trainable: bool
    ids: tuple[int, ...]
    text: str = ""
    """The dialogue where the model is a closed one, of which no token ids are known: `ids` then is empty, and spans and
    model calls count characters. Such a conversation can never be trained on."""
    spans: tuple[Span, ...]
    """Contiguous, in order, covering `ids` or `text`."""
    foreign_turns: int = Field(0, exclude_if=lambda turns: turns == 0)
    """The number of assistant turns that are a program's text (its examples, a history that it rewrote) and not sampled
    here: they are context, and never trained on."""

    tool_calls: int | None = Field(None, exclude_if=lambda calls: calls is None)
    """The number of tool calls that the model made in it, where a program offered tools; None in all others."""
    rewritten: bool = Field(False, exclude_if=lambda rewritten: not rewritten)
    """The dialogue goes on here from the conversation before, since the chat template wrote earlier turns in another
    way than the model was shown them, as by dropping thoughts."""

    @model_validator(mode="after")
    def _spans_cover_ids(self) -> Conversation:
        at = 0
        for span in self.spans:
            if span.start != at or span.end < span.start:
                raise ValueError(f"span {span.start}:{span.end} does not continue at {at}")
            at = span.end
        if self.text and self.ids:
            raise ValueError("a conversation is either token ids or text")
        if at != len(self.content):
            raise ValueError(f"spans cover {at} of {len(self.content)} {'characters' if self.text else 'tokens'}")
        return self

    def actions(self) -> list[tuple[int, int]]:
        """Return (start, end) of each action that was sampled and parsed. A thought, what follows it in the turn and
        what an engine put between them are one action."""
        found: list[tuple[int, int]] = []
        in_thought = False
        for span in self.spans:
            if in_thought and span.start == found[-1][1] and span.author == "assistant":
                found[-1] = (found[-1][0], span.end)
            elif span.sampled and span.parsed:
                found.append((span.start, span.end))
            else:
                continue
            in_thought = span.thought
        return found

    @property
    def content(self) -> tuple[int, ...] | str:
        """The token ids, or the characters of the text: spans count in these."""
        return self.text or self.ids


ParseState = Literal["free", "ok", "malformed"]
"""free: no schema was asked for. malformed: broke its schema, or was cut off by a limit."""


Repair = Literal["fence", "text", "syntax", "type", "case", "null", "unknown_field", "explanation", "length"]
"""Tolerated faults of a JSON reply. fence: a code fence that is not ```json. text: words or other objects around the
last object. syntax: JSON5, such as a comma too many. type: a value of another type, such as "1" for 1. case: a name
in other capitals. null: for a field that may be absent. unknown_field: one that nobody asked for. explanation: a
missing reason that no code reads. length: a list or text as long as the grammar of a short reply lets it be, of which
the rest is lost."""


class ModelCall(Record):
    """One completion of a model."""

    kind: Literal["model"] = "model"
    role: str
    conversation: int
    """Index into the trajectory's conversations."""
    start: int
    end: int
    """The sampled part is conversation.content[start:end]; of a look-ahead, the part that was used."""
    text: str
    parse: ParseState
    repairs: tuple[Repair, ...] = Field((), exclude_if=lambda repairs: not repairs)
    """Deviations of an action that was read although it is not exactly what was asked for."""
    error: str = ""
    attempt: int = 0
    """0 for the first try, 1 for the first re-ask."""
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int = 0
    new_tokens: int
    thought_tokens: int = Field(0, exclude_if=lambda tokens: tokens == 0)
    """The part of the new tokens that is a thought."""
    at: float
    """Seconds since the trajectory began."""
    seconds: float


LookupState = Literal["ok", "refused", "failed"]
"""refused: the tool found the call itself wrong. failed: the service gave no answer, after all its retries."""


class Search(Record):
    """One search of an index or source, with what it found."""

    kind: Literal["search"] = "search"
    role: str
    source: str = "index"
    """The config's index, or a name under its sources."""
    query: str
    k: int
    offset: int
    passages: tuple[Passage, ...]
    error: str = ""
    """Why it failed."""
    state: LookupState = Field(default_factory=lambda given: "failed" if given.get("error") else "ok")
    at: float
    seconds: float


class ToolCall(Record):
    """A tool called by name, such as one of an MCP server."""

    kind: Literal["tool"] = "tool"
    role: str
    source: str
    tool: str
    arguments: dict[str, Any]
    text: str = ""
    """The result, where that was not passages."""
    passages: tuple[Passage, ...] = ()
    error: str = ""
    """The refusal in the words that the model saw; or the failure, of which the model is told in one sentence."""
    state: LookupState = Field(default_factory=lambda given: "refused" if given.get("error") else "ok")
    at: float
    seconds: float


class Recall(Record):
    """A look into the evidence memory."""

    kind: Literal["recall"] = "recall"
    role: str
    entities: tuple[str, ...]
    passages: tuple[Passage, ...]
    at: float
    seconds: float


class Note(Record):
    """A decision of the system itself, for the reader of the log (a budget reached, an agent refused)."""

    kind: Literal["note"] = "note"
    role: str
    text: str
    reward: float | None = Field(None, ge=0, le=1, exclude_if=lambda reward: reward is None)
    """An agent's reward for its own work."""
    at: float


Event = Annotated[ModelCall | Search | ToolCall | Recall | Note, Field(discriminator="kind")]
Status = Literal["finished", "unparsed", "out_of_budget", "failed"]


class Turn(Record):
    """One speaker's turn in a debate, or one step of a loop."""

    round: int
    """From 1."""
    speaker: str
    query: str = ""
    passages: tuple[str, ...] = ()
    """Ids of the passages that it read, which are in the trajectory's events."""
    said: str
    verdict: str = ""
    """The answer or label that it came to; empty where it gave none."""
    scores: dict[str, float | None] = {}
    """Measured scores; null where one cannot be told."""


class Trajectory(Record):
    """One attempt at a question by a system, with everything that happened."""

    key: str
    """Content key of question, system, models, adapter, index and sample number (`sampling.pool`)."""
    question_id: str
    system: str
    policy: str
    """'base', or the digest of the adapter that was active."""
    sample: int
    seed: int
    explored: tuple[str, ...] = ()
    """The rules that narrowed what its agents could write (`sampling.explore`, `sampling.curriculum`)."""
    teacher: str = ""
    """The model that played the trainable roles in the student's place (`sampling.teacher`): what is marked as sampled
    is the teacher's, in the student's tokens. Empty where the student played them."""
    learners: tuple[str, ...] = ()
    """The roles that learn from it, where it belongs to a curriculum (`sampling.curriculum`); else all that are
    trained."""
    status: Status
    answer: str
    explanation: str = ""
    """The reasons for the answer, where the system gives them apart from it."""
    error: str = ""
    passages: tuple[Passage, ...] = ()
    """The supporting documents that the system returned with its answer."""
    candidates: dict[str, str] = {}
    """Answers that the system chose between, by the name of what proposed them."""
    turns: tuple[Turn, ...] = ()
    stopped: str = ""
    """Why a debate or a loop ended."""
    events: tuple[Event, ...] = ()
    conversations: tuple[Conversation, ...] = ()
    seconds: float = 0.0

    @property
    def response(self) -> str:
        """The part that can be checked against documents: the reasons for a label, or the answer itself."""
        return self.explanation or self.answer

    @property
    def token_exact(self) -> bool:
        """Return whether every conversation holds the token ids that its model saw and emitted."""
        return not any(conversation.text for conversation in self.conversations)

    @property
    def model_calls(self) -> tuple[ModelCall, ...]:
        return tuple(e for e in self.events if isinstance(e, ModelCall))

    @property
    def searches(self) -> tuple[Search, ...]:
        return tuple(e for e in self.events if isinstance(e, Search))

    @property
    def tool_calls(self) -> tuple[Search | ToolCall, ...]:
        """Everything that was looked up outside the model and the memory: searches are tool calls too."""
        return tuple(e for e in self.events if isinstance(e, Search | ToolCall))

    @property
    def failed_lookups(self) -> tuple[Search | ToolCall, ...]:
        """The searches and tool calls to which a service gave no answer."""
        return tuple(call for call in self.tool_calls if call.state == "failed")


ScoreState = Literal["scored", "null", "unfinished"]
"""null: it cannot be told. unfinished: the judge could not be reached, so it is tried again and never stored."""


class Score(Record):
    """One score of one trajectory."""

    trajectory: str
    name: str
    value: float | None
    """In [0, 1], of a cost from 0 up, or null when it cannot be told: then `reason` says why. Null is never zero."""
    roles: dict[str, float] = Field({}, exclude_if=lambda roles: not roles)
    """By trained role, the value of its part, where the reward tells roles apart: `value` is then the mean over all."""
    state: ScoreState = Field(default_factory=lambda given: "scored" if given.get("value") is not None else "null")
    reason: str = ""
    """Why it is null, or 0 without a look at the answer."""
    verdicts: tuple[dict[str, Any], ...] = ()
    """Every raw verdict behind the value, unparsable ones included."""
    unparsed: int = 0
    """The number of verdicts that could not be read."""
    content: str = Field("", exclude_if=lambda content: not content)
    """Digest of the record that was scored (`sampling.store.Outline`)."""
    runs: tuple[float | None, ...] = Field((), exclude_if=lambda runs: not runs)
    """The value of each judge run, where `rewards.runs` lets their number differ."""
    equal_to: str = Field("", exclude_if=lambda key: not key)
    """The trajectory that was judged in its place, since the judge would be shown the same; empty: itself."""

    @model_validator(mode="after")
    def _state_fits_value(self) -> Score:
        if (self.state == "scored") != (self.value is not None):
            raise ValueError(f"state {self.state!r} does not fit the value {self.value}")
        return self


Cause = Literal[
    "kept",
    "no_trajectory",
    "none_finished",
    "missing_scores",
    "reward_too_low",
    "score_too_low",
    "all_equal",
    "surplus",
]
"""The outcome of a question's selection: some trajectories are kept, or why none is."""


class QuestionChoice(Record):
    """Which trajectories of a question were kept, and why."""

    question_id: str
    kept: tuple[str, ...]
    cause: Cause
    reason: str
    """The cause as a sentence with its numbers, for people only."""
    rewards: dict[str, float | None]
    """Trajectory key to weighted reward; the least where it did not finish or has no answer, null where a needed score
    is null or the trajectory failed."""
    candidates: tuple[str, ...] = ()
    """The trajectories of a kept question that an objective over good and bad ones may learn from: with a reward, ended
    as the rule asks for, counted once."""
    weight: float = 1.0
    """Factor on the question's loss."""
    learners: tuple[str, ...] = ()
    """The roles that learn: of a choice among samples of the curriculum, or by one role's values. Empty: all."""


class Selection(Record):
    """Which trajectories of a round were kept to train on."""

    weights: dict[str, float]
    rule: dict[str, Any]
    questions: tuple[QuestionChoice, ...]
    """One choice for each question, among its own samples. Where roles learn by values of their own, it has what any of
    them keeps."""
    roles: tuple[QuestionChoice, ...] = Field((), exclude_if=lambda roles: not roles)
    """Where a reward has values by role, the choices that are trained on in place of `questions`: one for each question
    and role, or for all roles of a question without such values."""
    curriculum: tuple[QuestionChoice, ...] = ()
    """One choice for each question that has a sample of the curriculum (`sampling.curriculum`)."""
    origins: dict[str, tuple[int, int, int]] = {}
    """By how trajectories were sampled (free, exploring, taught, curriculum), the numbers of all, those with a reward
    above `min_reward`, and of the kept ones."""

    @property
    def choices(self) -> tuple[QuestionChoice, ...]:
        """All choices, by question: what is kept."""
        return self.questions + self.curriculum

    @property
    def own(self) -> tuple[QuestionChoice, ...]:
        """The choices among a question's own samples that are trained on, each by its `learners`."""
        return self.roles or self.questions

    @property
    def trained(self) -> tuple[QuestionChoice, ...]:
        """All choices that are trained on."""
        return self.own + self.curriculum

    @property
    def kept(self) -> tuple[str, ...]:
        return tuple(key for choice in self.choices for key in choice.kept)
