"""The one store of trajectories: a folder of JSONL segments, and a manifest of what was planned to be in it.

    manifest.json     system, setting, models, index, seed and questions, and the keys that were planned, in order
    <part>.jsonl      trajectories; each file has one writer at a time
    references.json   of a fork: the segments of another run whose trajectories are read as well

The manifest alone says which trajectories count. A folder may hold others (an earlier adapter's, those of an index that
was changed), and some of them twice, since a cluster starts some jobs twice and what failed is tried again.

A paper-sized round (mRAG's: 8 samples of 1,500 questions) has 12,000 whole records of up to 2 MB in memory each. So
whoever scores and selects has an outline of each in memory, which has nothing that a reward might read beside it, and
the whole record is read from the disk for each reward that scores it: a plug-in never sees a part of a record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import Field

from ratchet.core.config import SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.files import (
    Line,
    Segment,
    SegmentFile,
    as_line,
    count_lines,
    read_record,
    read_segments,
    segment_files,
    write_record,
)
from ratchet.core.plugins import short_name
from ratchet.core.records import Record, Status, Trajectory

FIRST_SEGMENT = "part-0.jsonl"


class Manifest(Record):
    """The pass that was planned last: its samples and their settings."""

    system: SystemConfig
    setting: dict[str, float | str | None]
    models: dict[str, str]
    """Role to the fingerprint of its model."""
    index: str
    """The index's digest."""
    sources: dict[str, str]
    """The other sources' digests, by name."""
    seed: int
    questions: str
    """`ratchet.core.records.questions_digest`."""
    samples: int
    keys: tuple[str, ...]
    """Of all trajectories that count, question by question."""
    skipped: tuple[str, ...] = Field((), exclude_if=lambda skipped: not skipped)
    """Of those that were not sampled, as their questions had enough (`sampling.enough`)."""

    def without(self, skipped: Collection[str]) -> Manifest:
        """The same pass, without trajectories that need not be sampled."""
        kept, left = (tuple(k for k in self.keys if (k in skipped) is is_left) for is_left in (False, True))
        return self.model_copy(update={"keys": kept, "skipped": left})


RECENT = 16
"""Whole records that stay in memory: several rewards score a trajectory one after the other."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The part of a trajectory that stays in memory."""

    key: str
    question_id: str
    sample: int
    status: Status
    answer: str
    content: str
    """Digest of the whole record: another attempt may have been sampled under its key."""
    explored: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    teacher: str = ""


def outline(trajectory: Trajectory, line: bytes | None = None) -> Outline:
    """The outline of a trajectory. `line`: what the store has of it; default: what it would be."""
    content = hashlib.sha256(as_line(trajectory) if line is None else line).hexdigest()[:32]
    one = trajectory
    origin = one.explored, one.learners, one.teacher
    return Outline(one.key, one.question_id, one.sample, one.status, one.answer, content, *origin)


class Trajectories(Mapping[str, Trajectory]):
    """Whole trajectories by key, in their order, each read when it is asked for; `outlines` are in memory."""

    def __init__(self, outlines: Mapping[str, Outline], read: Callable[[str], Trajectory]) -> None:
        """`read`: the whole trajectory of a key."""
        self.outlines = outlines
        self._read = lru_cache(RECENT)(read)

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Trajectories:
        """Those that are in memory already."""
        by_key = {trajectory.key: trajectory for trajectory in trajectories}
        return cls({key: outline(one) for key, one in by_key.items()}, by_key.__getitem__)

    def __getitem__(self, key: str) -> Trajectory:
        return self._read(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.outlines)

    def __len__(self) -> int:
        return len(self.outlines)


@dataclass(frozen=True)
class TrajectoryStore:
    """The trajectories of one pass on disk."""

    folder: Path

    @property
    def segments(self) -> list[SegmentFile]:
        return segment_files(self.folder)

    @property
    def manifest_path(self) -> Path:
        return self.folder / "manifest.json"

    def manifest(self) -> Manifest | None:
        """None before a pass was planned. Raises UserError for one that cannot be read."""
        way_out = "delete it and run the same sampling again: what is sampled is kept"
        return read_record(self.manifest_path, Manifest, way_out)

    def plan(self, manifest: Manifest) -> None:
        """Say what belongs here, before any of it is sampled."""
        if self.manifest() != manifest:
            write_record(self.manifest_path, manifest)

    def keys(self) -> Sequence[str]:
        """The planned keys in their order; none before a pass was planned. Raises UserError."""
        manifest = self.manifest()
        if manifest is None and self.segments:
            raise UserError(
                f"{self.folder}: trajectories without {self.manifest_path.name}, so they were sampled by an earlier "
                "version or the file was deleted; run the same sampling again"
            )
        return manifest.keys if manifest else ()

    def system_and_policy(self) -> tuple[str, str]:
        """(the system's name, the policy) of what is planned; empty before."""
        manifest = self.manifest()
        return (short_name(manifest.system.name), str(manifest.setting["policy"])) if manifest else ("", "")

    def open_segment(self, name: str = FIRST_SEGMENT) -> Segment:
        """The file that one writer appends to. Raises UserError where another one has it."""
        return Segment(self.folder / name)

    def finished(self) -> set[str]:
        """Keys that need not be sampled again. A trajectory that failed (a server's or a machine's fault) is redone."""
        return {t.key for t in read_segments(self.folder, Trajectory) if t.status != "failed"}

    def progress(self) -> tuple[int, int]:
        """(trajectories on disk, by their lines and without a look into them; those that are planned)."""
        return count_lines(self.segments), len(self.keys())

    def missing(self) -> tuple[int, int]:
        """(planned trajectories that are not on disk, all that are planned)."""
        lines, planned = self.progress()
        if lines == planned and len(self.segments) == 1:
            return 0, planned  # no need to read them
        return planned - sum(1 for _ in self.read()), planned

    def read(self, keys: Collection[str] | None = None) -> Iterator[Trajectory]:
        """Each of the planned trajectories, or of these, once, one at a time and in the order of the segments.

        Of several with one key the first counts. A failed one counts only where no other try of its key went better;
        those come last.
        """
        return (trajectory for _, _, trajectory in self._find(keys))

    def _find(self, keys: Collection[str] | None) -> Iterator[tuple[Line, bytes, Trajectory]]:
        wanted = set(self.keys() if keys is None else keys)
        failed: dict[str, tuple[Line, bytes, Trajectory]] = {}
        for line, data in (pair for file in self.segments for pair in file.lines()):
            if not wanted:
                return
            trajectory = line.parse(data, Trajectory)
            if trajectory.key not in wanted:
                continue
            if trajectory.status == "failed":
                failed.setdefault(trajectory.key, (line, data, trajectory))
                continue
            wanted.remove(trajectory.key)
            yield line, data, trajectory
        yield from (found for key, found in failed.items() if key in wanted)

    def open(self, keys: Sequence[str] | None = None) -> Trajectories:
        """The planned trajectories, or these, in their order, as far as they are there."""
        keys = self.keys() if keys is None else keys
        lines: dict[str, Line] = {}
        outlines: dict[str, Outline] = {}
        for line, data, trajectory in self._find(keys):
            lines[trajectory.key], outlines[trajectory.key] = line, outline(trajectory, data)

        def read(key: str) -> Trajectory:
            trajectory = lines[key].read(Trajectory)
            if trajectory.key != key:
                raise UserError(f"{lines[key].path} was changed while it was read; run the same command again")
            return trajectory

        return Trajectories({key: outlines[key] for key in keys if key in outlines}, read)

    def load(self, keys: Sequence[str] | None = None) -> list[Trajectory]:
        """As `open`, all in memory at once, without their conversations, which are most of their size: for measures and
        tables of our own, which read none."""
        keys = self.keys() if keys is None else keys
        by_key = {one.key: one.model_copy(update={"conversations": ()}) for one in self.read(keys)}
        return [by_key[key] for key in keys if key in by_key]
