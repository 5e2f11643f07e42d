"""docs/architecture.md lists the folders in the order of the contract that `make check` holds the imports to."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_folders_is_the_contract_on_imports() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = [re.findall(r"`(\w+)/`", line.split("|")[1]) for line in page.splitlines() if line.startswith("| `")]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert rows == [re.findall(r"\w+", layer) for layer in contracts[0]["layers"]]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "tools", "benchmarks"}
    assert packages == {name for row in rows for name in row}
