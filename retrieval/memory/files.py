"""The memory's folder: one append-only segment for each process that writes, all of them read by everybody.

Nothing here needs a server, or more of a file system than that files grow at their ends; so the folder may lie on a
network file system and serve many jobs at once. Every reader remembers how far it has read each segment. A line
without its end is not read yet: its writer is writing it, or was killed in the middle of it, before anybody was told
that the piece is kept.
"""

from __future__ import annotations

import os
import platform
import re
import uuid
from pathlib import Path

from pydantic import ValidationError

from ratchet.core.errors import UserError
from ratchet.core.files import Segment
from ratchet.retrieval.memory.records import EvidenceRecord


class MemoryFiles:
    """Threads must take turns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer = _fresh_name()
        self._segment: Segment | None = None
        self._read: dict[str, tuple[int, int]] = {}
        """By segment: the bytes and the lines that were read."""

    def append(self, record: EvidenceRecord) -> None:
        """Durable when it returns."""
        if self._segment is None:
            self._segment = Segment(self.folder / f"{self.writer}.jsonl")
        self._segment.append(record)

    def read_new(self) -> list[EvidenceRecord]:
        """What has come since the last call, of all segments. Raises UserError, and reads the same again then."""
        records: list[EvidenceRecord] = []
        read = {}
        for path in self.segments():
            fresh, read[path.name] = _whole_lines(path, *self._read.get(path.name, (0, 0)))
            records += fresh
        self._read |= read
        return records

    def segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def close(self) -> None:
        """A later `append` opens the folder again, under a new name."""
        if self._segment is not None:
            self._segment.close()
        self._segment = None
        self.writer = _fresh_name()


def _whole_lines(path: Path, offset: int, lines: int) -> tuple[list[EvidenceRecord], tuple[int, int]]:
    """The records from a byte on, after so many lines, and (bytes, lines) up to their end."""
    records = []
    try:
        with path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                lines += 1
                offset += len(line)
                records.append(EvidenceRecord.model_validate_json(line))
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror}); fix the folder's permissions") from error
    except ValidationError as error:
        raise UserError(
            f"{path}:{lines}: not a piece of evidence ({error.errors()[0]['msg']}); the file was changed or "
            "damaged: restore it, or delete this line"
        ) from error
    return records, (offset, lines)


def _fresh_name() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "", platform.node())[:40] or "host"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
