"""Two worked examples with a task's own labels, for models that are too small to follow a form they only read about.

SmolLM2-135M ends its text with a label alone on the last line in none of eight tries when it is told to, and in all of
eight after one example. No method here has such examples by itself: a system's setting `examples` puts them in.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.core.labels import labels_of, labels_text, task_text
from ratchet.config import Section
from ratchet.records import Label, Question, Stance


@dataclass(frozen=True)
class WorkedExample:
    """A task with its right answer."""

    asked: str
    """The claim or the question alone."""
    task: str
    """What is asked as a prompt has it, options included."""
    reason: str
    label: str

    @property
    def verdict(self) -> str:
        """In the form of `agents.core.labels.VERDICT`."""
        return f"{self.reason}\n{self.label}"


class ExampleSettings(Section):
    """Whether worked examples come first."""

    examples: bool = False
    """Two worked examples with the task's labels come first: small models need them (core/few_shot.py)."""


FACTS: dict[Stance, tuple[str, str, str]] = {
    "true": (
        "Water freezes at zero degrees Celsius.",
        "Does water freeze at zero degrees Celsius?",
        "Water turns to ice at zero degrees Celsius.",
    ),
    "false": (
        "The Sun orbits the Earth.",
        "Does the Sun orbit the Earth?",
        "The Earth orbits the Sun, and not the other way round.",
    ),
}
"""By stance: as a claim, as a question, and why."""
CHOICES = (
    ("Which of these is a metal?", ("wool", "iron", "milk", "paper"), 1, "Iron is a metal; the others are not."),
    ("Which of these can fly?", ("a swallow", "a stone", "a table", "a cup"), 0, "A swallow is a bird and can fly."),
)


def worked_examples(question: Question) -> tuple[WorkedExample, ...]:
    """One that is true and one that is false, where the labels say so; else two choices with options of their own."""
    labels = labels_of(question)
    if not _is_choice(question):
        stances = {label.stance: label.name for label in reversed(labels)}
        is_claim = question.form == "claim"
        return tuple(
            WorkedExample(claim, f"Claim: {claim}", reason, stances[stance])
            if is_claim
            else WorkedExample(asked, f"Question: {asked}", reason, stances[stance])
            for stance, (claim, asked, reason) in FACTS.items()
        )
    choices = []
    for text, options, right, reason in CHOICES:
        shown = [Label(name=label.name, meaning=option) for label, option in zip(labels, options, strict=False)]
        name = shown[min(right, len(shown) - 1)].name
        choices.append(WorkedExample(text, f"Question: {text}\n{labels_text(shown)}", reason, name))
    return tuple(choices)


def task_with_options(question: Question, options_below: bool = True) -> str:
    """The question; where it is a choice, with its options below it, as worked examples have them.

    `options_below: false` leaves them out, where the system's message has them.
    """
    options = f"\n{labels_text(question.labels)}" if options_below and _is_choice(question) else ""
    return task_text(question) + options


def _is_choice(question: Question) -> bool:
    return not FACTS.keys() <= {label.stance for label in question.labels}
