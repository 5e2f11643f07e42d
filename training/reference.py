"""Log-probabilities of the rows' labels under the model that training starts from, computed once and kept on disk.

That model is the one that sampled, save where `rounds.start: base` trains from the base model what an adapter sampled.
The values are recomputed from the stored ids in the precision of training; the sampler's own come from another engine,
at another temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.core.files import write_atomic

PART_ROWS = 64
"""Rows of one file: what a kill costs at most, on each device."""

LogProbabilities = npt.NDArray[np.float32]
"""Of one row's labels, in their order."""


class ReferenceCache:
    """The values of a table's rows, in files of `PART_ROWS` rows. A file is there completely or not at all."""

    def __init__(self, folder: Path, rows: pa.Table) -> None:
        self.folder = folder
        self.labels = [int(np.sum(mask.values.to_numpy())) for mask in rows["loss_mask"]]

    @property
    def parts(self) -> list[range]:
        """The row numbers of each file."""
        count = len(self.labels)
        return [range(at, min(at + PART_ROWS, count)) for at in range(0, count, PART_ROWS)]

    def path(self, part: int) -> Path:
        """The file of a part."""
        return self.folder / f"{part:05d}.parquet"

    def missing(self) -> list[int]:
        """The parts without a complete file."""
        return [number for number in range(len(self.parts)) if self._read(number) is None]

    def write(self, part: int, values: Sequence[LogProbabilities]) -> None:
        """Store the values of a part's rows."""
        sink = pa.BufferOutputStream()
        column = pa.array([value.astype(np.float32) for value in values], pa.list_(pa.float32()))
        pq.write_table(pa.table({"logps": column}), sink, compression="zstd")
        write_atomic(self.path(part), sink.getvalue().to_pybytes())

    def read(self) -> list[LogProbabilities]:
        """The values of every row. ValueError where a part is missing, which would be a bug."""
        rows: list[LogProbabilities] = []
        for number in range(len(self.parts)):
            values = self._read(number)
            if values is None:
                raise ValueError(f"{self.path(number)}: is missing or damaged")
            rows += values
        return rows

    def _read(self, part: int) -> list[LogProbabilities] | None:
        try:
            column = pq.read_table(self.path(part))["logps"]
        except (OSError, KeyError, pa.ArrowInvalid):
            return None
        values = [row.values.to_numpy(zero_copy_only=False) for row in column]
        if [len(value) for value in values] != [self.labels[row] for row in self.parts[part]]:
            return None
        return values
