"""Write the last screen of a run of the demo into the README, and its numbers beside their test.

python -m tools.last_screen runs/demo/round-1/evaluation/results.json 2m50s
"""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.core.files import write_atomic
from ratchet.evaluation.measures.measures import FORMS, strict_form
from ratchet.evaluation.measures.retrieval import LOSSES
from ratchet.evaluation.results import Results, read_results
from ratchet.evaluation.tables.comparison import print_summary

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
STORED = ROOT / "tests/evaluation/tables/demo_results.json"
SHOWN = re.compile(r"(?<=^<!-- last screen -->\n```text\n).*?(?=^```)", re.MULTILINE | re.DOTALL)


def last_screen(results: Results, duration: str) -> str:
    """What `ratchet selftrain` prints at the end of a run of the demo."""
    out = io.StringIO()
    print_summary([results], out)
    end = f"done in {duration}; the report is runs/demo/report.html"
    return "".join(f"{line.rstrip()}\n" for line in [*out.getvalue().splitlines(), end])


def shown_part(results: Results) -> dict[str, Any]:
    """The results without the measures that the screen does not show, and without values by question."""
    names = {strict_form(results.primary) + form for form in FORMS} | {"calls", "prompt_tokens", "new_tokens", *LOSSES}

    def shown(measures: Mapping[str, Any]) -> dict[str, Any]:
        return {name: measure for name, measure in measures.items() if name in names}

    part = results.model_dump(mode="json")
    for arm in part["arms"]:
        arm |= {"values": {}, "answered": {}, "measures": shown(arm["measures"])}
        arm["kinds"] = {kind: {results.primary: measures[results.primary]} for kind, measures in arm["kinds"].items()}
    for comparison in part["comparisons"]:
        comparison["measures"] = shown(comparison["measures"])
    return part


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.last_screen", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("duration", help="as the run said it")
    given = parser.parse_args()
    found = read_results(given.results)
    assert found is not None, given.results
    write_atomic(STORED, json.dumps({"duration": given.duration, "results": shown_part(found)}) + "\n")
    screen = last_screen(found, given.duration)
    write_atomic(README, SHOWN.sub(lambda _: screen, README.read_text(), count=1))
