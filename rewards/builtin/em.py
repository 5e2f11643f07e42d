"""Exact match with one of the right answers, both normalised. No judge."""

from ratchet.records import Question, Trajectory
from ratchet.text import Normalise, normalise_answer
from rewards.rules import VERSION as VERSION
from rewards.rules import exact_match, references

TITLE = "Exact match"
NEEDS = ("answers", "reference")


def score(question: Question, trajectory: Trajectory, normalise: Normalise = normalise_answer) -> float:
    """1 where the answer is a right one, else 0."""
    return exact_match(trajectory.answer, references(question), normalise)
