"""64-bit hashes of keys (document ids): the same on every machine and in every process, unlike Python's own."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np


def key_hash(text: str) -> int:
    """BLAKE2b of the text's UTF-8 bytes, cut to 8 bytes, as a little-endian unsigned integer.

    Two keys can share a hash (at 29 million keys with odds of about 1 in 44,000): compare the keys where hashes meet.
    """
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def key_hashes(texts: Iterable[str]) -> np.ndarray:
    """`key_hash` of every text: uint64 [n]."""
    digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, "<u8").astype(np.uint64, copy=False)
