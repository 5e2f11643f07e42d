"""sweep.csv: one row a cell and measure, for a spreadsheet (RFC 4180)."""

from __future__ import annotations

import csv
import io

from evaluation.results import Difference
from evaluation.sweep.records import SweepResults

HEADINGS = (
    *("stage", "set", "questions_digest", "system", "checkpoint", "policy", "run", "round", "step"),
    *("measure", "compared", "mean", "low", "high", "n", "nulls"),
    *("base", "difference", "difference_low", "difference_high", "p", "p_holm"),
)
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How a text begins that a spreadsheet would take for a formula; and what it skips before one."""


def as_csv(results: SweepResults) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(HEADINGS)
    facts = {one.name: one for one in results.checkpoints}
    for cell in results.cells:
        checkpoint, asked = facts[cell.checkpoint], results.set(cell.split)
        place = (checkpoint.round or None, checkpoint.step)
        of_cell = [cell.stage, cell.split, asked.digest, cell.system, cell.checkpoint, checkpoint.policy]
        head = [*map(disarmed, of_cell), disarmed(checkpoint.run), *place]
        for name, found in cell.arm.measures.items():
            compared = name == asked.measure
            difference = cell.difference if compared and cell.difference is not None else Difference(n=0)
            writer.writerow(
                [
                    *head,
                    *(name, "yes" if compared else "", found.mean, found.low, found.high, found.n, found.nulls),
                    *(disarmed(cell.base or "") if compared else "", difference.mean, difference.low, difference.high),
                    *(difference.p, cell.p_holm if compared else None),
                ]
            )
        if cell.price is not None:
            blank = [None] * (len(HEADINGS) - len(head) - 3)
            writer.writerow([*head, "price", "", cell.price, *blank])
    return out.getvalue()


def disarmed(text: str) -> str:
    """With an apostrophe before what a spreadsheet would run as a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) else text
