"""The pace at which a round was sampled: a file beside its trajectories, with a line for each command that sampled."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ratchet.core.files import Segment, read_segment
from ratchet.core.progress import duration
from ratchet.core.records import Trajectory


class Work(BaseModel):
    """The work of commands that sampled, and its time. Counts grow while a command samples."""

    model_config = ConfigDict(extra="forbid")

    seconds: float = 0.0
    """While trajectories were sampled: the loading of models and of questions is not counted."""
    trajectories: int = 0
    """Without those that failed, which are sampled again."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens."""
    new_tokens: int = 0

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of the block, also where it is interrupted."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - start

    def add(self, trajectory: Trajectory) -> None:
        """Count a trajectory that was sampled."""
        self.trajectories += trajectory.status != "failed"
        for call in trajectory.model_calls:
            self.prompt_tokens += call.prompt_tokens
            self.cached_tokens += call.cached_tokens
            self.new_tokens += call.new_tokens

    @property
    def an_hour(self) -> float:
        """Trajectories an hour of a command's work: of commands that sample side by side, their mean."""
        return 3600 * self.trajectories / self.seconds if self.seconds else 0.0

    @property
    def text(self) -> str:
        """The rate and what it was counted on, as a sentence without its end."""
        return (
            f"{self.an_hour:,.0f} trajectories an hour: {self.trajectories:,} in {duration(self.seconds)}, with "
            f"{self.prompt_tokens:,} prompt tokens ({self.cached_tokens:,} cached) and {self.new_tokens:,} new tokens"
        )

    def keep(self, trajectories: Path, segment: str) -> None:
        """Write it beside the folder of the trajectories; `segment` is the file there that the command wrote."""
        if self.seconds:
            with Segment(trajectories.with_name(f"sampling-{segment}")) as file:
                file.append(self)


def work_on(trajectories: Path) -> Work | None:
    """Sum the work of all commands for a folder of trajectories. None where nothing is known of it: it was written by
    another command."""
    lines = [work for path in trajectories.parent.glob("sampling-*.jsonl") for work in read_segment(path, Work)]
    if not lines:
        return None
    return Work(**{name: sum(getattr(work, name) for work in lines) for name in Work.model_fields})
