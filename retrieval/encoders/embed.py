"""What an embedder is, for those that are given one: without the libraries of `retrieval.encoders.embedder`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

Embed = Callable[[Sequence[str]], "np.ndarray"]
"""A function from n texts to float32 [n, dimension], with rows of length 1."""


def end_of(embed: Embed, text: str) -> tuple[str, int]:
    """The end of a text that the embedder reads, and how many tokens before it are left out.

    A model of this process reads no more than its limit; what a server reads is not known, and taken to be all.
    """
    own_end: Callable[[str], tuple[str, int]] | None = getattr(embed, "end_of", None)
    return (text, 0) if own_end is None else own_end(text)
