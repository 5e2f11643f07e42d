"""A system's task: how a run plays it, what a prompt says of it, what a system returns, and how it ends without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ratchet.agents.core.exploration import Rule
from ratchet.core.records import Label, Passage, Question, Stance


def task_text(question: Question) -> str:
    """The text with what it is: "Claim: ..." or "Question: ..."."""
    return f"{question.form.capitalize()}: {question.text}"


def task_with_options(question: Question) -> str:
    """The same; where it is a choice, whose labels are not true and false, with its options below it."""
    is_choice = not {"true", "false"} <= {label.stance for label in question.labels}
    return task_text(question) + (f"\n{labels_text(question.labels)}" if is_choice else "")


def labels_text(labels: Sequence[Label]) -> str:
    """One label a line, with what it means."""
    return "\n".join(f"{label.name}: {label.meaning}" if label.meaning else label.name for label in labels)


def label_of_stance(labels: Sequence[Label], stance: Stance) -> str | None:
    """The first label of that stance; None where the task has none."""
    return next((label.name for label in labels if label.stance == stance), None)


def named_examples(examples: Sequence[tuple[str, str]], labels: Sequence[Label]) -> Sequence[tuple[str, str]]:
    """Worked examples in which <true> and <false> are labels of the task, where it has two."""
    if not examples or len(labels) < 2:
        return examples
    true = label_of_stance(labels, "true") or labels[0].name
    false = label_of_stance(labels, "false") or labels[1].name

    def named(text: str) -> str:
        return text.replace("<true>", true).replace("<false>", false)

    return [(named(user), named(assistant)) for user, assistant in examples]


@dataclass(frozen=True)
class Answer:
    """The result of a system. One that met its own budget says so and gives what it has."""

    text: str
    passages: tuple[Passage, ...] = ()
    """Supporting documents. Those that no model was shown are left out of the record (`agents.core.episode`)."""
    status: Literal["finished", "out_of_budget", "unparsed"] = "finished"
    error: str = ""
    """Why it is unparsed or out of budget: the role and the cause."""
    explanation: str = ""
    """The reasons for a label or a short answer: what faithfulness is measured of."""
    candidates: Mapping[str, str] = field(default_factory=dict)
    """Answers that the system chose between, by the name of what proposed them."""
    stopped: str = ""
    """Why a debate or a loop ended."""


class _Ended(Exception):
    def __init__(self, role: str, error: str) -> None:
        super().__init__(f"{role}: {error}")
        self.role, self.error = role, error


class Unparsed(_Ended):
    """A role's action broke its schema and the malformed policy is exhausted."""


class OutOfBudget(_Ended):
    """A conversation has no room left in its model's context, or a system has used up a budget of its own."""


@dataclass(frozen=True)
class RunContext:
    """The settings by which a run plays a system, the same for every question."""

    temperature: float
    frozen_temperature: float
    """Temperature of the roles that are not trained."""
    top_p: float
    adapter: str | None
    """A LoRA folder for the trainable roles; None: the base model."""
    policy: str
    """'base', or the adapter's digest."""
    scope: str = "train"
    """Name of the evidence memory's part that is read and written, to which the sampling pool adds a key of all that
    the run samples (`sampling.pool.with_memory_scope`)."""


@dataclass(frozen=True)
class Job:
    """One trajectory to sample: its question, sample number, content key and seed."""

    question: Question
    sample: int
    key: str
    seed: int
    place: int = 0
    """The question's place among those of the pass."""
    rules: tuple[Rule, ...] = ()
    """They narrow what agents may write."""
    teacher: str = ""
    """The model that plays the trainable roles in the student's place (`sampling.teacher`)."""
    learners: tuple[str, ...] = ()
    """The roles that learn from it, where it belongs to a curriculum (`sampling.curriculum`)."""
    gold: tuple[Passage, ...] = ()
    """The question's gold documents, in a curriculum."""
