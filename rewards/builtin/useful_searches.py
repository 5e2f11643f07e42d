"""The share of searches that were needed: the harmonic mean of two shares.

- Of the searches, those that found something needed that none before had found.
- Of what is needed, what the searches found together.

Needed are the question's gold documents, by id or by title; of a question without any, the words of the answer. A
trajectory that never searched has 0. A call of a tool is a search. It says nothing of the answer, so it is for
`rewards.select.prefer` and for tables: among trajectories with the same reward the one that found everything with the
fewest searches comes first.
"""

from itertools import pairwise

from ratchet.core.records import Passage, Question, Trajectory
from ratchet.rewards import rules
from ratchet.rewards.inputs import Inputs
from ratchet.rewards.reward import Rule


def useful_searches(question: Question, trajectory: Trajectory, inputs: Inputs) -> tuple[float | None, str]:
    """The harmonic mean of the share of useful searches and the share of what is needed that was found."""
    if not trajectory.tool_calls:
        return 0.0, "nothing was searched for"
    found, shares = list[Passage](), [0.0]
    for search in trajectory.tool_calls:
        found += search.passages
        share = rules.gold_recall(question, found)
        if share is None:
            share = rules.lexical_support(trajectory.response, found)
        if share is None:
            return None, "the question has no gold documents, and the answer has no content words"
        shares.append(share)
    useful = sum(after > before for before, after in pairwise(shares))
    precision, recall = useful / len(trajectory.tool_calls), shares[-1]
    return (2 * precision * recall / (precision + recall) if useful else 0.0), ""


REWARD = Rule(title="Useful searches", version=2, score=useful_searches)
