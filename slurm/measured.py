"""What a run folder and an index tell of their own sizes and speeds, for `python -m slurm scale`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

from ratchet.config import Config
from ratchet.files import read_segments
from ratchet.records import Trajectory
from ratchet.runfolder import RunFolder

SAMPLE = 2000
"""Trajectories that are looked at."""


@dataclass(frozen=True)
class Measured:
    """Of some trajectories of a run."""

    trajectories: int
    bytes: int
    calls: int
    new_tokens: int
    seconds: float
    """Of all of them, one after another."""
    at_once: int

    @property
    def bytes_each(self) -> float:
        return self.bytes / self.trajectories

    @property
    def calls_each(self) -> float:
        return self.calls / self.trajectories

    @property
    def tokens_each(self) -> float:
        return self.new_tokens / self.trajectories

    @property
    def tokens_per_second(self) -> float:
        """Of all in flight together, had there always been as many as could be; where there were fewer, it was less."""
        return self.new_tokens * self.at_once / self.seconds


def measure(config: Config) -> Measured | None:
    """Of the latest round that has trajectories; None where none has."""
    for folder in reversed(RunFolder(config.folder).rounds()):
        some = [one for one in islice(read_segments(folder.trajectories, Trajectory), SAMPLE) if one.status != "failed"]
        seconds, tokens = (sum(one.seconds for one in some), sum(c.new_tokens for one in some for c in one.model_calls))
        if seconds > 0 and tokens > 0:
            return Measured(
                trajectories=len(some),
                bytes=sum(len(one.model_dump_json()) + 1 for one in some),
                calls=sum(len(one.model_calls) for one in some),
                new_tokens=tokens,
                seconds=seconds,
                at_once=min(config.sampling.concurrency, len(some)),
            )
    return None


def training_speed(config: Config) -> float | None:
    """Tokens a second of the median step of the latest training; None where there is none."""
    for folder in reversed(RunFolder(config.folder).rounds()):
        log = folder.training / "log.jsonl"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        speeds = [s for line in lines if line.endswith("\n") and (s := json.loads(line).get("tokens_per_second"))]
        if speeds:
            return median(speeds)
    return None


def index_sizes(folder: Path) -> tuple[int, int] | None:
    """(bytes, documents) of a built index; None where there is none."""
    try:
        documents = json.loads((folder / "manifest.json").read_bytes())["documents"]
    except (OSError, ValueError, KeyError):
        return None
    return (sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()), documents) if documents else None
