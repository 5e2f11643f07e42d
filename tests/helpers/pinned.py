"""Texts pinned word for word: a change of wording is then seen in review, as a change of a file in `snapshots/`.

To renew them on purpose:

    RENEW_SNAPSHOTS=1 python -m pytest tests/agents tests/rewards tests/questions
"""

import os
from pathlib import Path


def check_pinned(path: Path, text: str) -> None:
    """Compare a text with the one that is stored at `path`."""
    if os.environ.get("RENEW_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"no snapshot {path}; make it with RENEW_SNAPSHOTS=1 python -m pytest {path.parent.parent}"
    assert text == path.read_text(), f"the words differ from {path}; renew it if that is meant (RENEW_SNAPSHOTS=1)"
