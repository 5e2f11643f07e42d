"""What benchmarks write into the documentation: figures between the marks of a page, with commit and day."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from ratchet.core.errors import UserError
from ratchet.core.files import write_atomic
from ratchet.core.installed import code_version

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def taken() -> str:
    """Say of which commit figures are, and of which day."""
    day = datetime.date.today()
    return f"commit {(code_version() or '')[:8]}, {day.day} {day:%B %Y}"


def write_figures(page: Path, name: str, text: str) -> None:
    """Write a text between the page's lines `<!-- name -->` and `<!-- end -->`. Raises UserError where it has none."""
    marks = re.compile(rf"(?<=^<!-- {re.escape(name)} -->\n).*?(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)
    written, count = marks.subn(lambda _: f"{text.rstrip()}\n", page.read_text(), count=1)
    if not count:
        raise UserError(f"{page}: has no lines <!-- {name} --> and <!-- end -->")
    write_atomic(page, written)
