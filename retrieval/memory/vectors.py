"""What evidence is about, in vectors: each text is encoded once in a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

Embed = Callable[[Sequence[str]], np.ndarray]
"""Texts to float32 [n, dimension], rows of length 1."""


class Vectors:
    """Threads may ask at once; two that ask for the same new text may both have it encoded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._embed: Embed | None = None
        self._known: dict[str, np.ndarray] = {}

    def of(self, texts: Sequence[str], embed: Embed) -> np.ndarray:
        """float32 [n, dimension]; n must not be 0. What is not known yet is encoded in one batch."""
        with self._lock:
            if embed is not self._embed:
                self._embed, self._known = embed, {}
            known = self._known
            missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            vectors = np.asarray(embed(missing), np.float32)
            with self._lock:
                known.update(zip(missing, vectors, strict=True))
        return np.stack([known[text] for text in texts])
