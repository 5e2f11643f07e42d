"""What a trajectory spent, as counts. Their weights are below 0 (`rewards.selection.reward`)."""

from collections.abc import Callable

from ratchet.core.records import Question, Trajectory
from ratchet.rewards.inputs import Inputs
from ratchet.rewards.reward import Rule


def _cost(title: str, count: Callable[[Trajectory], int]) -> Rule:
    def score(question: Question, trajectory: Trajectory, inputs: Inputs) -> float:
        return float(count(trajectory))

    return Rule(title=title, version=1, score=score, is_cost=True)


REWARDS = {
    "model_calls": _cost("Model calls", lambda one: len(one.model_calls)),
    "searches": _cost("Searches", lambda one: len(one.searches)),
    "tool_calls": _cost("Searches and calls of tools", lambda one: len(one.tool_calls)),
    "tokens": _cost(
        "Tokens of prompts and replies",
        lambda one: sum(call.prompt_tokens + call.new_tokens for call in one.model_calls),
    ),
}
