"""The memory's folder: one append-only segment for each process that writes, all of them read by everybody.

Nothing here needs a server, or more of a file system than that files grow at their ends; so the folder may lie on a
network file system and serve many jobs at once. Every reader remembers how far it has read each segment. A line
without its end is not read yet: its writer is writing it, or was killed in the middle of it, before anybody was told
that the piece is kept.

A writer holds the lease of its segment, and names are never used again, so a segment without a holder does not change.
`rewriting` is refused while any segment has a holder; a writer that starts later has a segment of its own, which stays.
Rewriting first writes the new segment under a name of its own, then deletes the old ones. A kill between the two
leaves records twice, which changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from ratchet.errors import UserError
from ratchet.files import Segment, lease_of, write_jsonl
from ratchet.lease import Lease, holder_of
from retrieval.memory.records import EvidenceRecord


@dataclass
class _ReadPosition:
    inode: int
    offset: int = 0
    lines: int = 0


class MemoryFiles:
    """Threads must take turns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer = _fresh_name()
        self._segment: Segment | None = None
        self._read: dict[str, _ReadPosition] = {}

    def append(self, record: EvidenceRecord) -> None:
        """Durable when it returns."""
        if self._segment is not None and not self._segment.path.exists():
            self.close()  # this process was paused for so long that a rewriting took it for ended
        if self._segment is None:
            self._segment = Segment(self.folder / f"{self.writer}.jsonl")
        self._segment.append(record)

    def read_new(self) -> tuple[bool, list[EvidenceRecord]]:
        """(whether to forget all that was read before, what has come since). The first call gives everything."""
        restart = not self._read
        while True:
            try:
                found = self._read_new()
            except BaseException:
                self._read.clear()  # nobody got what was read before the bad file
                raise
            if found is not None:
                return restart, found
            self._read.clear()
            restart = True

    @contextlib.contextmanager
    def rewriting(self) -> Iterator[list[Path]]:
        """The segments, which nobody changes or rewrites meanwhile. UserError where somebody writes to one of them."""
        with Lease(self.folder / ".rewriting.lease", f"the memory {self.folder}", wait=0):
            segments = self.segments()
            if any(holder_of(lease_of(path)) for path in segments):
                raise UserError(f"{self.folder}: a job is writing this memory; wait for its end, or stop it")
            yield segments

    def replace(self, segments: Sequence[Path], records: Sequence[EvidenceRecord]) -> None:
        """Put these records in the place of the segments that `rewriting` gave."""
        if records:
            write_jsonl(self.folder / f"{_fresh_name()}.jsonl", records)
        for path in segments:
            path.unlink(missing_ok=True)

    def segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def close(self) -> None:
        """Others may rewrite the folder then. A later `append` opens it again, under a new name."""
        if self._segment is not None:
            self._segment.close()
        self._segment = None
        self.writer = _fresh_name()

    def _read_new(self) -> list[EvidenceRecord] | None:
        """None: a segment that was read is gone, or is another one: start over."""
        paths = self.segments()
        if self._read.keys() - {path.name for path in paths}:
            return None
        records: list[EvidenceRecord] = []
        for path in paths:
            try:
                file = path.open("rb")
            except FileNotFoundError:
                return None
            except OSError as error:
                raise UserError(f"{path}: cannot read ({error.strerror}); fix the folder's permissions") from error
            with file:
                status = os.fstat(file.fileno())
                read = self._read.setdefault(path.name, _ReadPosition(status.st_ino))
                if read.inode != status.st_ino or read.offset > status.st_size:
                    return None
                file.seek(read.offset)
                records += _lines(file, path, read)
        return records


def _lines(file: BinaryIO, path: Path, read: _ReadPosition) -> list[EvidenceRecord]:
    """The whole lines from `read` on, which goes on with them."""
    records, offset, lines = [], read.offset, read.lines
    for line in file:
        if not line.endswith(b"\n"):
            break
        lines += 1
        offset += len(line)
        try:
            records.append(EvidenceRecord.model_validate_json(line))
        except ValidationError as error:
            raise UserError(
                f"{path}:{lines}: not a piece of evidence ({error.errors()[0]['msg']}); the file was changed or "
                "damaged: restore it, or delete this line"
            ) from error
    read.offset, read.lines = offset, lines
    return records


def _fresh_name() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "", platform.node())[:40] or "host"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
