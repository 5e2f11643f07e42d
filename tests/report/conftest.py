"""What the tests of pages share."""

from io import StringIO

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots are set up and not drawn, which is half of what a page takes: for tests that look at the rest of it."""

    def save(self: Figure, out: StringIO, **options: object) -> None:
        out.write('<svg width="1" height="1"></svg>')

    monkeypatch.setattr(Figure, "savefig", save)
