"""What a model said, read as JSON: values that no record could hold do not get through."""

from __future__ import annotations

import pytest

from agents.core.output import Malformed, parse_output

ANY_OBJECT = {"type": "object"}


def test_half_a_surrogate_pair_in_an_action_becomes_a_question_mark() -> None:
    assert parse_output('{"query": "tide \\ud800"}', ANY_OBJECT) == {"query": "tide ?"}


@pytest.mark.parametrize("levels", [300, 100_000])
def test_an_action_that_is_too_deep_to_be_recorded_is_malformed(levels: int) -> None:
    with pytest.raises(Malformed, match="levels deep"):
        parse_output('{"arguments": ' + "[" * levels + "]" * levels + "}", ANY_OBJECT)
