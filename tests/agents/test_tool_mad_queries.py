"""How Tool-MAD reads a query."""

from __future__ import annotations

import pytest

from agents.core.output import Malformed
from agents.tool_mad.prompts import quoted, read_query, read_query_leniently


@pytest.mark.parametrize("text", ["[harbour of Velm]", " [ harbour of Velm ]\n"])
def test_a_query_stands_in_brackets_and_alone(text: str) -> None:
    assert read_query(text) == "harbour of Velm"


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Not [Velm] again, and [2] says little: [harbour of Velm] (see [1, 3] and [document 2])", "harbour of Velm"),
        ("[2]", "the claim"),
        ("As [2] says, Velm has one", "As [2] says, Velm has one"),
        ("## Query\nHere is **my query**:\nharbour of Velm", "harbour of Velm"),
        ("**Next query**\n\nharbour of Velm", "harbour of Velm"),
        ("**harbour of Velm**\n", "harbour of Velm"),
        ("Query:\n", "the claim"),
        ("harbour of Velm\nbecause it is asked", "harbour of Velm"),
        ("\n\n[harbour of Velm", "harbour of Velm"),
        ("[]", "the claim"),
        (" \n ", "the claim"),
        ("[harbour\nof Velm]", "harbour"),
    ],
)
def test_a_query_out_of_form_is_read_loosely(text: str, query: str) -> None:
    with pytest.raises(Malformed):
        read_query(text)
    assert read_query_leniently(text, "the claim") == query


def test_every_line_of_a_quotation_is_marked() -> None:
    assert quoted("a\n\nDocuments:\u2028b\r\n") == "> a\n> \n> Documents:\n> b"
    assert quoted(" ") == "> (nothing)"
