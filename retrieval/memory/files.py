"""The memory's folder: one append-only segment for each process that writes, all of them read by everybody.

Nothing here needs a server, or more of a file system than that files grow at their ends and that advisory locks work;
so the folder may lie on a network file system and serve many jobs at once. Every reader remembers how far it has read
each segment. A line without its end is not read yet: its writer is at it, or was killed in the middle of it, before
anybody was told that the piece is kept.

Writers share a lock. Rewriting the folder takes it whole, so that it is refused while anybody writes, and comes
in this order: the new segment under a name of its own, then the old ones go. A kill between the two leaves records
twice, which changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from ratchet.errors import UserError
from ratchet.files import Segment, disk_error, write_jsonl
from retrieval.memory.records import Left


@dataclass
class _Read:
    inode: int
    offset: int = 0
    lines: int = 0


class MemoryFiles:
    """Threads must take turns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer = _fresh_name()
        self._segment: Segment | None = None
        self._writing: BinaryIO | None = None
        """The lock, held."""
        self._read: dict[str, _Read] = {}

    def append(self, record: Left) -> None:
        """Durable when it returns."""
        if self._segment is None:
            self._writing = self._locked(fcntl.LOCK_SH)
            self._segment = Segment(self.folder / f"{self.writer}.jsonl")
        self._segment.append(record)

    def news(self) -> tuple[bool, list[Left]]:
        """(whether to forget all that was read before, what has come since). The first call gives everything."""
        restart = not self._read
        while True:
            try:
                found = self._news()
            except BaseException:
                self._read.clear()  # nobody got what was read before the bad file
                raise
            if found is not None:
                return restart, found
            self._read.clear()
            restart = True

    def rewrite(self, records: Sequence[Left]) -> None:
        """Make these records the whole memory. Call it with what `locked_for_rewriting` let nobody change."""
        old = list(self.segments())
        if records:
            write_jsonl(self.folder / f"{_fresh_name()}.jsonl", records)
        for path in old:
            path.unlink(missing_ok=True)

    def locked_for_rewriting(self) -> BinaryIO:
        """Nobody writes until this file is closed. UserError where somebody is at it."""
        try:
            return self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{self.folder}: a job is writing this memory; wait for its end, or stop it") from error

    def segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def close(self) -> None:
        """Others may rewrite the folder then. A later `append` opens it again, under a new name."""
        for file in (self._segment, self._writing):
            if file is not None:
                file.close()
        self._segment = self._writing = None
        self.writer = _fresh_name()

    def _locked(self, how: int) -> BinaryIO:
        path = self.folder / "lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = path.open("ab+")
        except OSError as error:
            raise disk_error(path, error) from error
        try:
            fcntl.flock(file, how)
        except BlockingIOError:
            file.close()
            raise
        except OSError as error:
            file.close()
            raise disk_error(path, error) from error
        return file

    def _news(self) -> list[Left] | None:
        """None: a segment that was read is gone, or is another one: start over."""
        paths = self.segments()
        if self._read.keys() - {path.name for path in paths}:
            return None
        records: list[Left] = []
        for path in paths:
            try:
                file = path.open("rb")
            except FileNotFoundError:
                return None
            except OSError as error:
                raise UserError(f"{path}: cannot read ({error.strerror}); mend the folder's permissions") from error
            with file:
                status = os.fstat(file.fileno())
                read = self._read.setdefault(path.name, _Read(status.st_ino))
                if read.inode != status.st_ino or read.offset > status.st_size:
                    return None
                file.seek(read.offset)
                records += _lines(file, path, read)
        return records


def _lines(file: BinaryIO, path: Path, read: _Read) -> list[Left]:
    """The whole lines from `read` on, which goes on with them."""
    records, offset, lines = [], read.offset, read.lines
    for line in file:
        if not line.endswith(b"\n"):
            break
        lines += 1
        offset += len(line)
        try:
            records.append(Left.model_validate_json(line))
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
