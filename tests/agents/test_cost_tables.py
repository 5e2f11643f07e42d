"""The tables of costs on the papers' pages are those of their configs' rows (tests/helpers/cost_tables.py)."""

from __future__ import annotations

import pytest

from tests.helpers.cost_tables import PAGES, page_with_table
from tests.helpers.pages import ROOT


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_table_of_costs_is_that_of_its_configs_rows(page: str) -> None:
    assert (ROOT / f"docs/papers/{page}.md").read_text() == page_with_table(page), (
        "run `python -m tests.helpers.cost_tables`"
    )
