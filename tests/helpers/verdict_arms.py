"""Arms on questions with labels, made by hand: who said what, and the results of it."""

from collections.abc import Mapping, Sequence

from ratchet.core.records import Event, Label, Question, Status, Trajectory
from ratchet.evaluation.comparisons import compare
from ratchet.evaluation.results import Arm, Results
from ratchet.questions.labels import FEVER
from tests.helpers.arms import make_arm

SHORT = {"S": "SUPPORTS", "R": "REFUTES", "N": "NOT ENOUGH INFO", "U": "UNCERTAIN", "X": "It is so.", "": ""}
STATUSES: dict[str, Status] = {"!": "failed", "?": "unparsed", "$": "out_of_budget"}


def claims(gold: str, labels: tuple[Label, ...] = FEVER, prefix: str = "c") -> list[Question]:
    """A claim for each letter."""
    return [
        Question(id=f"{prefix}{i}", text=f"Claim {i}.", form="claim", labels=labels, label=SHORT[letter])
        for i, letter in enumerate(gold)
    ]


def said(questions: Sequence[Question], samples: Sequence[str], events: tuple[Event, ...] = ()) -> list[Trajectory]:
    """One string a sample of all questions, a letter a question; ! failed, ? unparsed and $ out of budget have no
    answer."""
    return [
        Trajectory(
            key=f"{question.id}-{number}-{''.join(samples)}",
            question_id=question.id,
            system="s",
            policy="base",
            sample=number,
            seed=0,
            status=STATUSES.get(letter, "finished"),
            answer=SHORT.get(letter, ""),
            events=events,
        )
        for number, sample in enumerate(samples)
        for question, letter in zip(questions, sample, strict=True)
    ]


def results_of(questions: Sequence[Question], arms: Mapping[str, Sequence[str]], title: str = "claims") -> Results:
    """Arm name to its samples; base first."""
    made = [
        make_arm(name, "s", "base", questions, said(questions, samples), {}, (), {}) for name, samples in arms.items()
    ]
    return compared(title, questions, made, "accuracy", max(len(samples) for samples in arms.values()))


def compared(title: str, questions: Sequence[Question], arms: Sequence[Arm], primary: str, samples: int = 1) -> Results:
    """The results of arms, the first of which is base, on a question set of this name."""
    comparisons = tuple(compare(arms[0], arm, questions, primary, 0) for arm in arms[1:])
    return Results(
        round=1, split=title, title=title, questions=len(questions), samples=samples, seed=0, resamples=500,
        primary=primary, arms=tuple(arms), comparisons=comparisons, headline="", numbers="",
    )  # fmt: skip
