"""A folder of trajectories as sampling leaves it, made by hand."""

from collections.abc import Sequence
from pathlib import Path

from ratchet.core.config import SystemConfig
from ratchet.core.files import write_jsonl
from ratchet.core.records import Question, Trajectory, questions_digest
from ratchet.sampling.store import FIRST_SEGMENT, Manifest, TrajectoryStore


def store(
    folder: Path,
    trajectories: Sequence[Trajectory],
    questions: Sequence[Question] = (),
    system: SystemConfig | None = None,
    samples: int = 1,
    missing: int = 0,
) -> TrajectoryStore:
    """`trajectories` under their keys in this order, as planned for `questions`; `missing` more are planned."""
    made = TrajectoryStore(folder)
    made.plan(
        Manifest(
            system=system or SystemConfig(name="no_retrieval"),
            setting={"policy": trajectories[0].policy if trajectories else "base"},
            models={},
            index="",
            sources={},
            seed=0,
            questions=questions_digest(questions),
            samples=samples,
            keys=(*(trajectory.key for trajectory in trajectories), *(f"missing {n}" for n in range(missing))),
        )
    )
    write_jsonl(folder / FIRST_SEGMENT, trajectories)
    return made
