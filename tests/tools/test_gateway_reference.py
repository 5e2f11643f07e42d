"""The table of fields in docs/guides/own-agent.md is current."""

from tools.gateway_reference import PAGE, reference


def test_the_table_is_current() -> None:
    assert PAGE.read_text() == reference(), "run: python -m tools.gateway_reference"
    assert "| `/v1/messages` | `max_tokens`" in reference()
