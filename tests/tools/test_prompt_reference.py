"""The page docs/reference/prompts.md is current, and lists every prompt of every system."""

import pytest

from ratchet.agents.core.system import load_system
from ratchet.core.config import SystemConfig
from tests.helpers.any_system import SYSTEMS
from tools.prompt_reference import PAGE, reference


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == reference(), "run: python -m tools.prompt_reference"


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_prompt_is_listed_with_its_chat_role_and_variables(name: str) -> None:
    page = reference()
    section = page.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
    prompts = load_system(SystemConfig(name=name)).prompts
    assert len(prompts) > 2, "a system names its prompts in PROMPTS"
    for slot, prompt in prompts.items():
        assert slot.endswith((".system", ".user"))
        [row] = [line for line in (section + page).splitlines() if line.startswith(f"- `{slot}.txt`")][:1]
        assert all(f"`{variable}`" in row for variable in (*prompt.variables, *prompt.optional))
