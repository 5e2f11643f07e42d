"""python -m tools.gateway_reference: write the fields that the gateway reads into docs/guides/own-agent.md."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from ratchet.agents.external.protocols import IGNORED, REFUSED
from ratchet.agents.external.translations import DIALECTS
from ratchet.core.files import write_atomic

PAGE = Path(__file__).parents[1] / "docs/guides/own-agent.md"
TABLE = re.compile(r"(?<=<!-- `python -m tools.gateway_reference` writes this table -->\n).*?\n(?=\n)", re.DOTALL)


def reference() -> str:
    """Return the page with the table as it is now."""
    rows = ["| path | fields that are read |", "|---|---|"]
    rows += [f"| `{path}` | {_names(dialect.model_fields)} |" for path, dialect in DIALECTS.items()]
    rows.append(f"| each, without effect | {_names(IGNORED.split())} |")
    rows.append(f"| refused, as any other | {_names(REFUSED)} |")
    return TABLE.sub(lambda _: "\n".join([*rows, ""]), PAGE.read_text(), count=1)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tools.gateway_reference", description=__doc__).parse_args()
    write_atomic(PAGE, reference())
    print(PAGE)
