"""Arms that tests measure, under a config with the scores and weights that they name."""

from collections.abc import Mapping, Sequence

from ratchet.core.config import Config
from ratchet.core.records import Question, Trajectory
from ratchet.evaluation import comparisons
from ratchet.evaluation.measures.measures import Scores
from ratchet.evaluation.results import Arm


def make_arm(
    name: str,
    system: str,
    policy: str,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    scores: Scores,
    names: Sequence[str],
    weights: Mapping[str, float],
    keep: Sequence[str] = ("finished",),
) -> Arm:
    """The arm's measures."""
    config = Config(run="runs/arms", seed=0)
    select = config.rewards.select.model_copy(update={"keep_status": tuple(keep)})
    sections = {
        "evaluation": config.evaluation.model_copy(update={"scores": tuple(names)}),
        "rewards": config.rewards.model_copy(update={"weights": dict(weights), "select": select}),
    }
    made = config.model_copy(update=sections)
    return comparisons.make_arm(made, name, system, policy, questions, trajectories, scores)
