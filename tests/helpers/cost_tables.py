"""The tables of costs on the papers' pages: each row of a paper's config, with the calls that test_budgets.py plays.

`python -m tests.helpers.cost_tables` writes them.
"""

import argparse

from ratchet.core.config import SystemConfig, load_config
from tests.agents.test_budgets import NOTHING_FOUND, TABLE
from tests.helpers.pages import ROOT

PAGES = {"awe": "awe", "tool-mad": "tool_mad", "mermaid": "mermaid"}
"""The config of each page."""
BEGIN = "<!-- Written by `python -m tests.helpers.cost_tables`. Do not edit. -->\n"
END = "<!-- The end of what it writes. -->\n"
WITHOUT_COST = "tolerance"
"""A setting that the plays of FIRE need, because their embedder takes all texts for one."""


def costs(row: SystemConfig) -> str:
    """Model calls and searches of a row, least to most. The settings count that some play of the system names."""
    plays = [
        (settings, calls, searches)
        for name, settings, _, calls, searches in [*TABLE, *NOTHING_FOUND]
        if name == row.name
    ]
    named = {key for settings, *_ in plays for key in settings} - {WITHOUT_COST}
    given = {key: value for key, value in row.settings.items() if key in named}
    alike = [
        counts
        for settings, *counts in plays
        if {key: value for key, value in settings.items() if key != WITHOUT_COST} == given
    ]
    assert alike, f"TABLE of test_budgets.py has no play of {row.name} with {given}"
    return " | ".join(
        f"{min(each)}" if min(each) == max(each) else f"{min(each)} to {max(each)}" for each in zip(*alike, strict=True)
    )


def page_with_table(page: str) -> str:
    """The page's text with the table of its config's rows."""
    config = load_config(ROOT / f"configs/papers/{PAGES[page]}.yaml")
    rows = {f"{config.system.name} (base)": config.system, **config.evaluation.baselines}
    names: dict[str, list[str]] = {}
    for name, row in rows.items():
        names.setdefault(costs(row), []).append(f"`{name}`")
    lines = ["| rows | model calls | searches or tool calls |", "|---|---|---|"]
    lines += [f"| {', '.join(alike)} | {counts} |" for counts, alike in names.items()]
    before, _, rest = (ROOT / f"docs/papers/{page}.md").read_text().partition(BEGIN)
    return before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tests.helpers.cost_tables", description=__doc__).parse_args()
    for page in PAGES:
        (ROOT / f"docs/papers/{page}.md").write_text(page_with_table(page))
