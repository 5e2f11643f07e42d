"""For the tests of training."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of garbage collections: transformers' trainer starts a full one at every training,
    and each takes 0.3 s where all libraries and tests are loaded, as long as the tests' trainings themselves."""
    gc.freeze()
