"""Writing an index folder: arrays and string tables with checksums, in a folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ratchet.core.files import new_folder
from ratchet.core.locks import Lock
from ratchet.retrieval.layout import FileEntry


@contextlib.contextmanager
def building_folder(target: Path) -> Iterator[Path]:
    """`new_folder`, of which a lock refuses a second builder. It lies beside the folder: inside, it would have to be
    deleted a moment before the folder has its name."""
    with Lock(lock_of(target), f"the shard {target}", wait=0), new_folder(target) as folder:
        yield folder


def lock_of(target: Path) -> Path:
    """The lock of the process that builds `target`."""
    return target.with_name(f".{target.name}.lock")


class ArrayWriter:
    """A flat array, written piece by piece."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._file = path.open("wb")
        self._dtype = dtype
        self._digest = hashlib.sha256()
        self.bytes = 0

    def append(self, values: np.ndarray | Sequence[int] | bytes) -> None:
        data = values if isinstance(values, bytes) else _bytes_of(np.ascontiguousarray(values, self._dtype))
        self._file.write(data)
        self._digest.update(data)
        self.bytes += len(data)

    def finish(self) -> FileEntry:
        self._file.close()
        return FileEntry(dtype=self._dtype, bytes=self.bytes, sha256=self._digest.hexdigest())

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk was already reported by the write that met it
            self._file.close()


def _bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array, where they are."""
    return array.reshape(-1).view(np.uint8).data


class FolderWriter:
    """The files of an index folder while it is written. `close` gives up on those that are not finished."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, ArrayWriter] = {}

    def array(self, name: str, dtype: str) -> ArrayWriter:
        self._open[name] = ArrayWriter(self._folder / name, dtype)
        return self._open[name]

    def strings(self, name: str) -> StringsWriter:
        return StringsWriter(self.array(f"{name}.offsets", "<i8"), self.array(f"{name}.utf8", "|u1"))

    def finish(self) -> dict[str, FileEntry]:
        return {name: writer.finish() for name, writer in sorted(self._open.items())}

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()


class StringsWriter:
    """A table of strings: offsets and one blob."""

    def __init__(self, offsets: ArrayWriter, blob: ArrayWriter) -> None:
        self._offsets, self._blob = offsets, blob
        offsets.append([0])

    def extend(self, texts: Sequence[str]) -> None:
        encoded = [text.encode() for text in texts]
        ends = self._blob.bytes + np.cumsum([len(data) for data in encoded], dtype=np.int64)
        self._offsets.append(ends)
        self._blob.append(b"".join(encoded))
