"""The parts of the documentation that are written from the code are current, and name all that they should."""

import re
import tomllib
from pathlib import Path

import pytest

from ratchet.agents.core.system import load_system
from ratchet.core.config import SystemConfig
from tests.helpers.any_system import SYSTEMS
from tools import config_reference, gateway_reference, prompt_reference

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_page_of_the_config_is_current() -> None:
    page = config_reference.reference()
    assert config_reference.PAGE.read_text() == page, "run: python -m tools.config_reference"
    own, _, _ = page.partition(config_reference.SYSTEMS)
    unexplained = re.findall(r"^\| `\w+` \|.*\|  \|$", own, re.MULTILINE)
    assert own.count("\n| `") > 150 and not unexplained
    assert "### `mrag`" in page and "| `max_calls` | `30` |" in page
    # Settings that several systems share are in one table.
    assert re.search(r"^\| `style` \| \*\*`paper`\*\*, `brief`: `no_retrieval`, `vanilla_rag` \|", page, re.MULTILINE)


def test_the_page_of_the_prompts_is_current() -> None:
    assert prompt_reference.PAGE.read_text() == prompt_reference.reference(), "run: python -m tools.prompt_reference"


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_prompt_is_listed_with_its_chat_role_and_variables(name: str) -> None:
    page = prompt_reference.reference()
    section = page.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
    prompts = load_system(SystemConfig(name=name)).prompts
    assert len(prompts) > 2, "a system names its prompts in PROMPTS"
    for slot, prompt in prompts.items():
        assert slot.endswith((".system", ".user"))
        [row] = [line for line in (section + page).splitlines() if line.startswith(f"- `{slot}.txt`")][:1]
        assert all(f"`{variable}`" in row for variable in (*prompt.variables, *prompt.optional))


def test_the_table_of_the_gateways_fields_is_current() -> None:
    page = gateway_reference.reference()
    assert gateway_reference.PAGE.read_text() == page, "run: python -m tools.gateway_reference"
    assert "| `/v1/messages` | `max_tokens`" in page


def test_the_table_of_folders_is_the_contract_on_imports() -> None:
    """`make check` holds the imports to it."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = [re.findall(r"`(\w+)/`", line.split("|")[1]) for line in page.splitlines() if line.startswith("| `")]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert rows == [re.findall(r"\w+", layer) for layer in contracts[0]["layers"]]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "tools", "benchmarks"}
    assert packages == {name for row in rows for name in row}
