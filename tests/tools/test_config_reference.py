"""The page docs/reference/config.md is current, and every key of a config is explained in it."""

import re

import pytest

from tools.config_reference import PAGE, SYSTEMS, reference


@pytest.mark.slow
def test_the_page_is_current() -> None:
    assert PAGE.read_text() == reference(), "run: python -m tools.config_reference"


@pytest.mark.slow
def test_every_key_of_a_config_has_a_meaning() -> None:
    own, _, _ = reference().partition(SYSTEMS)
    unexplained = re.findall(r"^\| `\w+` \|.*\|  \|$", own, re.MULTILINE)
    assert own.count("\n| `") > 150 and not unexplained


@pytest.mark.slow
def test_every_setting_of_a_system_is_listed_under_it_or_with_those_that_several_share() -> None:
    page = reference()
    assert "### `mrag`" in page and "| `max_calls` | `30` |" in page
    assert re.search(r"^\| `style` \| \*\*`paper`\*\*, `brief`: `no_retrieval`, `vanilla_rag` \|", page, re.MULTILINE)
