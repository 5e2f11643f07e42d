"""A pass: one system under one policy on some questions; its trajectories to sample, and its scope in the memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ratchet.agents.core.resources import Resources
from ratchet.agents.core.task import Job, RunContext
from ratchet.core.config import SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question, content_key
from ratchet.sampling.store import FIRST_SEGMENT


@dataclass(frozen=True)
class Pass:
    """One system under one policy on some questions: what one folder of trajectories holds."""

    system: SystemConfig
    context: RunContext
    questions: Sequence[Question]
    samples: int
    folder: Path
    group: int = 0
    """Passes of a lower group start first: those of one adapter together, where a server holds only a few."""
    segment: str = FIRST_SEGMENT
    """The file in the folder that this pass writes. Several passes, on several machines, may fill one folder."""
    part: tuple[int, int] = (0, 1)
    """(K, N): only every N-th of the questions, from the K-th on. All parts share one evidence memory."""
    seed_offset: int = 0
    """Added to the config's seed: the same pass with another offset has other seeds and keys."""
    first: int | None = None
    """Sample only so many of the questions now; all are planned."""


def with_memory_scope(
    one_pass: Pass, system: SystemConfig, questions: str, seed: int, models: dict[str, str], index: str
) -> RunContext:
    """The pass's setting, its scope made the experiment's own: the name that the setting gives it, and a key.

    `system`: its `System.identity`; `questions`: their digest.

    The key is of all that the trajectories depend on, the other questions and samples included, which leave evidence:
    a changed run starts with an empty memory, and the same command again resumes with its own.
    """
    sampled_by = {key: value for key, value in asdict(one_pass.context).items() if key != "adapter"}
    key = content_key("scope", sampled_by, system, models, index, seed, questions, one_pass.samples)
    return replace(one_pass.context, scope=f"{one_pass.context.scope} {key[:12]}")


def check_sequence(
    one_pass: Pass, jobs: Sequence[Job], done: Collection[str], resources: Resources, scope: str
) -> None:
    """Raises UserError where the claims of a pass cannot each find just what the earlier ones left."""
    if one_pass.part[1] > 1:
        raise UserError("memory.sequential: parts run side by side; sample without --part, or set it to false")
    assert resources.memory is not None, "a run always has a memory"
    expected = {job.question.id for job in jobs if job.key in done}
    # The evidence of a trajectory is there before the trajectory is.
    following = next((job.question.id for job in jobs if job.key not in done), None)
    if resources.memory.questions(scope) - expected - {following}:
        raise UserError(
            f"memory.sequential: {resources.memory.files.folder} already holds evidence of this experiment that is not "
            "of the trajectories on disk; delete the folder"
        )
