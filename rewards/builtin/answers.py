"""Rewards by rules from `rewards.rules`, and what an agent reports of itself. No judge."""

from ratchet.core.records import Note, Question, Trajectory
from ratchet.rewards import rules
from ratchet.rewards.inputs import Inputs
from ratchet.rewards.reward import Rule


def accuracy(question: Question, trajectory: Trajectory, inputs: Inputs) -> float | None:
    """1 where the answer is the question's label, else 0."""
    return rules.accuracy(trajectory.answer, question)


def exact_match(question: Question, trajectory: Trajectory, inputs: Inputs) -> float:
    """1 where the answer is a right one, both normalised, else 0."""
    return rules.exact_match(trajectory.answer, rules.references(question), inputs.normalise)


def token_f1(question: Question, trajectory: Trajectory, inputs: Inputs) -> float:
    """The word F1 with the right answer that it is best with."""
    return rules.token_f1(trajectory.answer, rules.references(question), inputs.normalise)


def nugget_containment(question: Question, trajectory: Trajectory, inputs: Inputs) -> float | None:
    """The share of the question's nuggets that occur in the answer."""
    return rules.nugget_containment(trajectory.answer, question.nuggets)


def _without_nuggets(question: Question) -> str:  # a nugget without a word is none
    return "the question has no nuggets" if rules.nugget_containment("", question.nuggets) is None else ""


def lexical_support(question: Question, trajectory: Trajectory, inputs: Inputs) -> tuple[float | None, str]:
    """The share of the response's content words that its documents contain; null for a response without any."""
    value = rules.lexical_support(trajectory.response, trajectory.passages)
    return value, "the answer has no content words" if value is None else ""


def reported(question: Question, trajectory: Trajectory, inputs: Inputs) -> tuple[float | None, str]:
    """The last reward that the agent told the gateway (`POST /reward`)."""
    told = [event for event in trajectory.events if isinstance(event, Note) and event.reward is not None]
    return (told[-1].reward, told[-1].text) if told else (None, "the agent reported no reward")


RIGHT_ANSWER = ("answers", "reference")
VERSION = rules.VERSION
REWARDS = {
    "accuracy": Rule(title="Accuracy", version=VERSION, score=accuracy, needs=("label",)),
    "em": Rule(title="Exact match", version=VERSION, score=exact_match, needs=RIGHT_ANSWER, normalises=True),
    "f1": Rule(title="F1", version=VERSION, score=token_f1, needs=RIGHT_ANSWER, normalises=True),
    "nugget_containment": Rule(
        title="Nugget containment",
        version=VERSION,
        score=nugget_containment,
        needs=("nuggets",),
        unscorable=_without_nuggets,
    ),
    "lexical_support": Rule(title="Lexical support", version=VERSION, score=lexical_support),
    "reported": Rule(title="Reported reward", version=1, score=reported),
}
