"""The trajectories that a round trains on, and what makes one impossible to train on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ratchet.core.config import Config, load_members
from ratchet.core.errors import UserError
from ratchet.core.records import Selection, Trajectory, content_key
from ratchet.core.runfolder import RoundFolder, file_digest
from ratchet.rewards.summary import single_answer
from ratchet.sampling.store import TrajectoryStore


def read_kept_selection(folder: RoundFolder) -> Selection:
    """The round's selection. Raises UserError when there is none, or nothing was kept."""
    path, selection = folder.selection, folder.read_selection()
    if selection is None:
        raise UserError(f"{path}: does not exist; select the round's trajectories first: `ratchet score`")
    if not selection.kept:
        reasons = Counter(choice.reason for choice in selection.questions)
        shown = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
        raise UserError(
            f"{path}: no trajectory was kept, so there is nothing to train on ({shown or 'no questions'}). Sample more "
            "or easier questions (sampling.samples, questions.train), or keep more (rewards.select, rewards.weights)"
        )
    return selection


@dataclass(frozen=True)
class LearntRound:
    """A round whose kept trajectories are trained on."""

    folder: RoundFolder
    member: str = ""
    """The name of the config's member that sampled it; empty where the config has none and trains on its own."""

    @property
    def prefix(self) -> str:
        """What makes a question's id unique: two members may use the same for different questions."""
        return f"{self.member}/" if self.member else ""


@dataclass(frozen=True)
class KeptTrajectories:
    """The trajectories that were kept in a round."""

    source: LearntRound
    selection: Selection

    @property
    def store(self) -> TrajectoryStore:
        return TrajectoryStore(self.source.folder.trajectories)

    @property
    def digest(self) -> str:
        """Of what is stored and of what is kept of it: a trajectory may have been sampled again under its key."""
        return content_key([file_digest(path) for path in self.store.segments], self.selection.kept)

    @property
    def questions(self) -> dict[str, str]:
        """Trajectory key to question, of every question that something is kept of."""
        return {
            key: self.source.prefix + choice.question_id
            for choice in self.selection.questions
            if choice.kept
            for key in (*choice.kept, *choice.rewards)
        }


def learnt_rounds(config: Config, folder: RoundFolder) -> tuple[LearntRound, ...]:
    """What a round, or one of its controls, trains on: itself, or the same round of the config's members."""
    if config.members:
        members = load_members(config)
        return tuple(LearntRound(RoundFolder(own.folder / folder.path.name), name) for name, own in members.items())
    return (LearntRound(folder),)


def read_kept(rounds: Sequence[LearntRound]) -> list[KeptTrajectories]:
    """What was kept in these rounds. UserError where a selection is missing or kept nothing."""
    return [KeptTrajectories(source, read_kept_selection(source.folder)) for source in rounds]


def warn_of_single_answer(kept: Iterable[KeptTrajectories]) -> None:
    """Print a warning where all that is trained on gives the same answer."""
    if warning := single_answer(
        [best for part in kept for best in part.store.open(part.selection.kept).outlines.values()]
    ):
        print(f"warning: {warning}", file=sys.stderr)


def check_ids_are_known(trajectory: Trajectory) -> None:
    """Raises UserError where a closed model, whose token ids are not known, played a trainable role."""
    for conversation in trajectory.conversations:
        if conversation.trainable and conversation.text:
            raise UserError(
                f"trajectory {trajectory.key} cannot be trained on: its role {conversation.role} was played by the "
                f"closed model {conversation.model!r} (engine: chat-api), whose token ids are not known"
            )
