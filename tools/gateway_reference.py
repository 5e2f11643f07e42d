"""python -m tools.gateway_reference: write the fields that the gateway reads into docs/guides/own-agent.md."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from ratchet.agents.external.protocols import IGNORED, Dialect, ProgramRequest
from ratchet.agents.external.translations import MessagesRequest, ResponsesRequest
from ratchet.core.files import write_atomic

PAGE = Path(__file__).parents[1] / "docs/guides/own-agent.md"
TABLE = re.compile(r"(?<=<!-- `python -m tools.gateway_reference` writes this table -->\n).*?\n(?=\n)", re.DOTALL)
PATHS: dict[str, type[Dialect]] = {
    "/v1/chat/completions": ProgramRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
}


def reference() -> str:
    """Return the page with the table as it is now."""
    rows = ["| path | read | refused |", "|---|---|---|"]
    for path, dialect in PATHS.items():
        refused = " ".join(dialect.REFUSED.values()).split()
        rows.append(f"| `{path}` | {_names(dialect.model_fields)} | {_names(refused)} |")
    rows.append(f"| each, without effect | {_names(IGNORED.split())} | any other |")
    return TABLE.sub(lambda _: "\n".join([*rows, ""]), PAGE.read_text(), count=1)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tools.gateway_reference", description=__doc__).parse_args()
    write_atomic(PAGE, reference())
    print(PAGE)
