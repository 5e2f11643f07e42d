"""What an agent made of its own work, as it told the gateway (`POST /reward`). No judge."""

from ratchet.core.records import Note, Question, Trajectory
from ratchet.rewards.inputs import Inputs
from ratchet.rewards.reward import Rule


def score(question: Question, trajectory: Trajectory, inputs: Inputs) -> tuple[float | None, str]:
    """The last reward that the agent reported."""
    told = [event for event in trajectory.events if isinstance(event, Note) and event.reward is not None]
    return (told[-1].reward, told[-1].text) if told else (None, "the agent reported no reward")


REWARD = Rule(title="Reported reward", version=1, score=score)
