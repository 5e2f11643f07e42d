"""Learned sparse vectors as flat arrays, and their files, in which a builder keeps them until it needs them."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ratchet.core.errors import UserError
from ratchet.core.files import write_atomic

# The weight of every positive, finite bfloat16. By way of float64: NumPy's float32 log1p differs between processors.
WEIGHTS = np.log1p((np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class SparseVectors:
    """Row i is terms[offsets[i]:offsets[i + 1]] and the codes beside them."""

    offsets: np.ndarray
    """int64 [n + 1]."""
    terms: np.ndarray
    """uint32 [nnz], vocabulary ids, ascending within a row."""
    codes: np.ndarray
    """uint16 [nnz], the bits of the pooled logit as a bfloat16; positive and finite, so they sort as the weights do."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def weights(self) -> np.ndarray:
        """float32 [nnz]: log(1 + logit), the exact value that is indexed and scored."""
        return WEIGHTS[self.codes]


def save_vectors(path: Path, vectors: SparseVectors) -> None:
    """Write one .npz file atomically; the same vectors give the same bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, offsets=vectors.offsets, terms=vectors.terms, codes=vectors.codes)
    write_atomic(path, buffer.getvalue())


def load_vectors(path: Path) -> SparseVectors | None:
    """Read what `save_vectors` wrote; None if the file is missing or damaged, so that texts must be encoded again."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return SparseVectors(file["offsets"], file["terms"], file["codes"])
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno is not None:
            raise UserError(f"{path}: cannot read ({error.strerror})") from error
        return None
    except (ValueError, TypeError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile):
        return None
