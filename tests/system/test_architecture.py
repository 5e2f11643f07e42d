"""docs/architecture.md lists the folders in the order of the contract that `make check` holds the imports to."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from tests.helpers.playing import QUESTION, Shelf, engine, passage, play

ROOT = Path(__file__).parents[2]


def test_the_table_of_folders_is_the_contract_on_imports() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = [re.findall(r"`(\w+)/`", line.split("|")[1]) for line in page.splitlines() if line.startswith("| `")]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert rows == [re.findall(r"\w+", layer) for layer in contracts[0]["layers"]]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "tools", "benchmarks"}
    assert packages == {name for row in rows for name in row}


def recipe_of(title: str) -> str:
    page = (ROOT / "docs" / "architecture.md").read_text()
    return page.partition(f"## Recipe: {title}\n")[2].partition("\n## ")[0]


async def test_a_two_role_system_is_one_file_and_one_config(tmp_path: Path) -> None:
    recipe = recipe_of("a two-role system")
    [source], [config] = (re.findall(rf"```{kind}\n(.*?)```", recipe, re.DOTALL) for kind in ("python", "yaml"))
    (tmp_path / "draft_and_check.py").write_text(source)
    system = yaml.safe_load(config)["system"] | {"name": str(tmp_path / "draft_and_check.py")}
    agent = engine(["Bo", "Ada Torrin"])
    played = await play(system, agent, Shelf({QUESTION.text: [passage(n) for n in (1, 2, 3)]}))
    assert (played.status, played.answer, len(played.passages)) == ("finished", "Ada Torrin", 2)
    writer, checker = played.conversations
    assert (writer.role, writer.trainable, checker.role, checker.trainable) == ("writer", True, "checker", False)
    assert str(agent.calls[1].messages[-1]["content"]).endswith("Draft: Bo")
