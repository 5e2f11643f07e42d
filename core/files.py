"""Files that survive a kill at any moment: atomic writes of complete files, and append-only JSONL segments.

A segment belongs to one writer at a time. Lines are flushed to disk before their write returns, so nothing
acknowledged is lost; a torn last line (a kill in the middle of a write) is cut back before the next append and
ignored by readers.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError
from pydantic_core import PydanticSerializationError

from ratchet.core.errors import UserError, raise_error
from ratchet.core.file_kinds import HEAD, not_utf8, refuse_other_kind
from ratchet.core.locks import Lock, disk_error

R = TypeVar("R", bound=BaseModel)


@contextlib.contextmanager
def _published(path: Path) -> Iterator[Path]:
    """Yield a hidden path that gets the name `path` when the block ends, and is deleted when it fails. Raises
    UserError."""
    # Random: two machines that write one folder may use the same process number.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        for written in (*temporary.rglob("*"), temporary):
            _sync(written)
        temporary.replace(path)
        if path.is_dir():
            _sync(path.parent)
    except BaseException as error:
        _delete(temporary)
        from safetensors import SafetensorError  # late: few commands need it

        if isinstance(error, FileNotFoundError) and path.exists():  # another process cleared what it took for left over
            raise _is_there(path) from error
        if isinstance(error, OSError | SafetensorError):  # safetensors has an error of its own for a full disk
            raise disk_error(path, error) from error
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a complete file: readers see the old content or the new, never a part. Several processes may do so."""
    with _published(path) as temporary:
        temporary.write_bytes(data.encode(errors="replace") if isinstance(data, str) else data)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield the name of a file for the block to write, which becomes `path` when the block ends. What a killed writer
    has left is deleted: writers take turns."""
    with _published(path) as temporary:
        for left in path.parent.glob(f".{glob.escape(path.name)}.{8 * '[0-9a-f]'}.tmp"):
            _delete(left)
        yield temporary


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """`new_file` for a folder. Raises UserError where `path` is a folder with content, at the beginning or the end."""
    _check_free(path)
    try:
        with new_file(path) as temporary:
            temporary.mkdir()
            yield temporary
    except UserError:
        _check_free(path)
        raise


def _check_free(path: Path) -> None:
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise _is_there(path)


def _is_there(path: Path) -> UserError:
    return UserError(
        f"{path}: is there already. If another process has finished it, run the same command again; else delete it"
    )


def write_json(path: Path, value: Any) -> None:
    """Write a value as one JSON file, atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def read_json_file(path: Path) -> Any:
    """Read a JSON file. Raises OSError, and ValueError for what is no JSON or is nested too deeply."""
    try:
        with open_regular(path) as file:
            return json.load(file)
    except RecursionError as error:
        raise ValueError("the values are nested too deeply") from error


def as_line(record: BaseModel | dict[str, Any]) -> bytes:
    """Return the line of a segment that holds the record. Half of a surrogate pair, which UTF-8 has none of, becomes
    '?'."""
    if isinstance(record, BaseModel):
        try:
            return record.model_dump_json().encode() + b"\n"
        except PydanticSerializationError:
            record = record.model_dump()
    return json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"


class Segment:
    """An append-only JSONL file of one writer at a time: its lock refuses a second one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.Lock()
        self._lock = Lock(path.with_name(f".{path.name}.lock"), str(path))
        self._lock.acquire()
        try:
            # Unbuffered: what a full disk refused must not be tried again, half, by a later flush.
            self._file = path.open("ab+", buffering=0)
            self._cut_torn_tail()
        except OSError as error:
            self._lock.release()
            raise disk_error(path, error) from error

    def _cut_torn_tail(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        keep = size
        while keep > 0:
            start = max(0, keep - 65536)
            self._file.seek(start)
            newline = self._file.read(keep - start).rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            keep = start
        if keep != size:
            self._file.truncate(keep)

    def append(self, record: BaseModel | dict[str, Any]) -> None:
        self.extend([record])

    def extend(self, records: Iterable[BaseModel | dict[str, Any]]) -> None:
        """Append records, which are durable when it returns; on a full disk the file is cut back to its last complete
        line.

        Raises UserError where the file is no longer there, and ValueError where another thread has closed it.
        """
        left = memoryview(b"".join(map(as_line, records)))
        with self._turn:
            before = self._file.seek(0, os.SEEK_END)
            try:
                while left:
                    left = left[self._file.write(left) :]
                os.fsync(self._file.fileno())
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file.fileno(), before)
                raise disk_error(self.path, error) from error
            if not self.path.exists():
                raise UserError(
                    f"{self.path}: was moved away or deleted while this command wrote into it. What was finished "
                    "before went with it: move it back, and run the same command again"
                )

    def close(self) -> None:
        with self._turn:
            self._file.close()
        self._lock.release()

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file that a user names for reading. Raises OSError, and UserError for a pipe or a device, whose reading
    may never end."""
    # Opening a pipe without O_NONBLOCK would wait for the process at its other end.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UserError(f"{path}: is a pipe or a device; write what it gives into a file, and name that")
    return file


def read_small(path: Path, limit: int, where: str = "") -> bytes:
    """Read a small file that a user names. Raises UserError, which begins with `where` or the path, for more bytes than
    `limit` and for what cannot be read."""
    where = where or str(path)
    try:
        with open_regular(path) as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{where}: cannot read ({reason})") from error
    if len(data) > limit:
        raise UserError(f"{where}: is larger than {limit:,} bytes, which no file of this kind is")
    return data


def read_small_text(path: Path, limit: int, where: str = "") -> str:
    """As `read_small`, decoded from UTF-8, without a byte order mark and with lines that end in a line feed."""
    try:
        return io.TextIOWrapper(io.BytesIO(read_small(path, limit, where)), "utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise not_utf8(where or path, f"byte {error.start}") from error


def read_jsonl(
    path: Path, what: str = "JSON object", skip: int = 0, on_error: Callable[[UserError], None] = raise_error
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for every line of a user's JSONL file, .gz or not.

    Blank lines hold no object, but count. The first `skip` objects are not parsed. A bad line is an error that goes to
    `on_error`; where that does not raise it, the line is skipped.
    """
    try:
        file = open_regular(path)
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror}); check the path in the config") from error
    with file, gzip.open(file) if path.suffix == ".gz" else file as lines:
        try:
            refuse_other_kind(lines.peek(HEAD), path)
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                if skip > 0:
                    skip -= 1
                    continue
                if b"\0" in line:  # of another encoding, every line would be wrong
                    raise not_utf8(f"{path}:{number}")
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    on_error(UserError(f"{path}:{number}: not valid JSON ({error}); fix or remove this line"))
                    continue
                if not isinstance(value, dict):
                    on_error(UserError(f"{path}:{number}: expected a {what} ({{...}}), got {type(value).__name__}"))
                    continue
                yield number, value
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(
                f"{path}: cannot read on ({error}); if it is a .gz file it may be cut off or damaged"
            ) from error


def write_record(path: Path, record: BaseModel) -> None:
    """Write a record as one JSON file, atomically, in the order of its fields."""
    write_atomic(path, record.model_dump_json(indent=1) + "\n")


def read_record(path: Path, kind: type[R], fix: str) -> R | None:
    """Read the record of a JSON file; None where there is no file. Raises UserError that ends with `fix`."""
    try:
        with open_regular(path) as file:
            return kind.model_validate_json(file.read())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror})") from error
    except ValidationError as error:
        raise UserError(f"{path}: not a {kind.__name__} ({error.errors()[0]['msg']}); {fix}") from error


@dataclass(frozen=True, slots=True)
class Line:
    """A complete line of a segment. Segments are append-only: it stays where it is."""

    path: Path
    number: int
    """From 1."""
    start: int
    length: int

    def parse(self, data: bytes, kind: type[R]) -> R:
        """Read the record that the line's bytes hold. Raises UserError."""
        try:
            return kind.model_validate_json(data)
        except ValidationError as error:
            problem = error.errors()[0]
            raise UserError(
                f"{self.path}:{self.number}: not a {kind.__name__} ({problem['msg']}); the file was changed or "
                "damaged: restore it, or delete this line to have its work done again"
            ) from error

    def read(self, kind: type[R]) -> R:
        """Read the record from the disk. Raises UserError."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                return self.parse(file.read(self.length), kind)
        except OSError as error:
            raise UserError(f"{self.path}:{self.number}: cannot read ({error.strerror})") from error


def read_lines(path: Path, after: Line | None = None, size: int | None = None) -> Iterator[tuple[Line, bytes]]:
    """Yield the lines of one segment, or those after one of them; a torn last one is skipped. `size`: only the lines in
    so many bytes."""
    if not path.exists():
        return
    with path.open("rb") as file:
        start, read = (after.start + after.length, after.number) if after else (0, 0)
        file.seek(start)
        for number, data in enumerate(file, read + 1):
            if not data.endswith(b"\n") or (size is not None and start + len(data) > size):
                return
            yield Line(path, number, start, len(data)), data
            start += len(data)


def read_segment(path: Path, kind: type[R]) -> Iterator[R]:
    """Records of one segment; a torn last line is skipped, any other damage is an error."""
    return (line.parse(data, kind) for line, data in read_lines(path))


class JsonObject(RootModel[dict[str, Any]]):
    """Any object of JSON."""


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read a segment of lines without a record class, such as a training's log; a torn last line is skipped."""
    return [line.root for line in read_segment(path, JsonObject)]


def read_segments(folder: Path, kind: type[R]) -> Iterator[R]:
    """Records of every segment of a folder, in the order of `segment_files`."""
    for file in segment_files(folder):
        for line, data in file.lines():
            yield line.parse(data, kind)


REFERENCES = "references.json"


class Reference(BaseModel):
    """The beginning of a segment in another folder, as it was when a folder began to refer to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: str
    """Relative to the folder that refers to it."""
    size: int
    """Its bytes then. Lines that were appended later are not read."""
    changed: int
    """Its time of change then, in nanoseconds: where that or the size is another one, the digest is computed again."""
    digest: str
    """The sha256 of these bytes."""


class References(BaseModel):
    """references.json: the segments in other folders that are read as if they lay beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    files: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment of a folder: a file of its own, or one that it refers to."""

    path: Path
    referred: Reference | None = None

    @property
    def size(self) -> int:
        """Its bytes, those of a torn last line among them."""
        return self.referred.size if self.referred else self.path.stat().st_size

    def lines(self, after: Line | None = None) -> Iterator[tuple[Line, bytes]]:
        """Yield its lines as `read_lines` does."""
        return read_lines(self.path, after, self.referred.size if self.referred else None)


def segment_files(folder: Path) -> list[SegmentFile]:
    """Return the *.jsonl segments of a folder by name, those that it refers to first. Raises UserError where one of
    these is gone or was changed."""
    fix = f"delete {folder / REFERENCES}"
    known = read_record(folder / REFERENCES, References, f"{fix} to have its work done again")
    referred = [_referred(folder, reference) for reference in (known.files if known else ())]
    return [*referred, *(SegmentFile(path) for path in sorted(folder.glob("*.jsonl")))]


def _referred(folder: Path, reference: Reference) -> SegmentFile:
    path = Path(os.path.normpath(folder / reference.path))
    try:
        status = path.stat()
        same = (status.st_size, status.st_mtime_ns) == (reference.size, reference.changed)
        if same or _digest(path, reference.size, status.st_mtime_ns) == reference.digest:
            return SegmentFile(path, reference)
        problem = "was changed"
    except OSError as error:
        problem = f"cannot be read any more ({error.strerror})"
    raise UserError(
        f"{path}: {problem}, and {folder} refers to it: restore it, or delete {folder / REFERENCES} to have its work "
        "done again"
    )


@lru_cache
def _digest(path: Path, size: int, changed: int) -> str:
    """Return the sha256 of the first `size` bytes of a file with this time of change."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while size > 0 and (block := file.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def refer_to(folder: Path, other: Path, named: Collection[str] | None = None) -> int:
    """Let a folder refer to the segments of another one, and return their number. `named`: only to those of these
    names. Raises UserError."""
    files = []
    for file in segment_files(other):
        if named is not None and file.path.name not in named:
            continue
        reference, status = file.referred, file.path.stat()
        size = reference.size if reference else status.st_size
        changed = reference.changed if reference else status.st_mtime_ns
        digest = reference.digest if reference else _digest(file.path, size, changed)
        path = os.path.relpath(file.path.absolute(), folder.absolute())
        files.append(Reference(path=path, size=size, changed=changed, digest=digest))
    if files:
        write_record(folder / REFERENCES, References(files=tuple(files)))
    return len(files)


def write_jsonl(path: Path, records: Iterable[BaseModel | dict[str, Any]]) -> None:
    """Write records as one JSONL file, atomically."""
    write_atomic(path, b"".join(map(as_line, records)))


def count_lines(segments: Iterable[SegmentFile]) -> int:
    """Count the complete lines of all segments, without parsing them."""
    total = 0
    for one in segments:
        left = one.size
        with one.path.open("rb") as file:
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                total += block.count(b"\n")
                left -= len(block)
    return total
