"""How systems read free text: what is in form, and what their papers' codes make of what is not."""

from collections.abc import Callable
from typing import Any

import pytest

from ratchet.agents.core.output import Malformed
from ratchet.agents.debates import Action, read_objection, read_winner
from ratchet.agents.madke import read_choice
from ratchet.agents.react import Step, read_action, strictly
from ratchet.agents.tool_mad.debate import read_query
from ratchet.questions.labels import FEVER

Reader = Callable[[str], Any]
READERS: dict[str, Reader] = {
    "query": lambda text: read_query(text, "the claim"),
    "winner": read_winner,
    "action": read_objection,
    "choice": lambda text: read_choice(text, 10, 3),
    "step": lambda text: strictly(read_action(text, FEVER)),
}
IN_FORM: list[tuple[str, str, Any]] = [
    ("query", "[harbour of Velm]", "harbour of Velm"),
    ("query", " [ harbour of Velm ]\n", "harbour of Velm"),
    ("winner", "proponent", "proponent"),
    ("winner", "**Opponent Agent**.", "opponent"),
    ("action", "No. Query Expansion: the year", Action("the year")),
    ("action", "No.\n**Query Expansion:** [the year]\nSo there.", Action("the year")),
    ("action", "query optimisation: 'who' -> 'who built it'", Action("who built it", "who")),
    ("action", "Query Expansion:\n the year", Action("the year")),
    ("choice", "[2] [5]", (2, 5)),
    ("choice", "[9]? Not at all: [5], [2]\n[5], [2]\n", (5, 2)),
    ("choice", "[1, 3]", (1, 3)),
    ("choice", "**[4]**.", (4,)),
    ("choice", "[None]", ()),
    ("step", "**Thought:** The observation says so.\n**Action:** finish[REFUTES]**", ("finish", "REFUTES")),
    ("step", "Thought 2: So.\nAction 2: Finish[not enough info].", ("finish", "NOT ENOUGH INFO")),
    ("step", "search[a harbour]", ("search", "a harbour")),
    ("step", "Action:\nlookup[[1] the harbour]", ("lookup", "[1] the harbour")),
    ("step", "Action: finish[The answer is SUPPORTS]", ("finish", "SUPPORTS")),
]
OUT_OF_FORM: list[tuple[str, str, Any]] = [
    (
        "query",
        "Not [Velm] again, and [2] says little: [harbour of Velm] (see [1, 3] and [document 2])",
        "harbour of Velm",
    ),
    ("query", "[2]", "the claim"),
    ("query", "As [2] says, Velm has one", "As [2] says, Velm has one"),
    ("query", "## Query\nHere is **my query**:\nharbour of Velm", "harbour of Velm"),
    ("query", "**Next query**\n\nharbour of Velm", "harbour of Velm"),
    ("query", "**harbour of Velm**\n", "harbour of Velm"),
    ("query", "Query:\n", "the claim"),
    ("query", "harbour of Velm\nbecause it is asked", "harbour of Velm"),
    ("query", "\n\n[harbour of Velm", "harbour of Velm"),
    ("query", "[]", "the claim"),
    ("query", " \n ", "the claim"),
    ("query", "[harbour\nof Velm]", "harbour"),
    ("winner", "", "opponent"),
    ("winner", "Proponent or Opponent", "proponent"),
    ("winner", "Opponent, no Proponent", "opponent"),
    ("winner", "I do not agree with the Opponent.", "opponent"),
    ("action", "", None),
    ("action", "I want another query.", None),
    ("action", "Query Expansion:  \n", None),
    ("action", "Query Optimization: ->", None),
    ("action", "Query Optimization: the year", Action("the year", "the year")),
    ("action", "Query Optimization: -> the year", Action("the year", "the year")),
    ("action", "Query Optimization: the year ->", None),
    ("action", "Query Expansion: a\nQuery Optimization: b -> c", Action("c", "b")),
    ("action", "Query Expansion: a\nQuery Expansion: b", Action("a")),
    ("action", "Query Expansion: a -> b", Action("a -> b")),
    ("choice", "", ()),
    ("choice", "none", ()),
    ("choice", "2 5", ()),
    ("choice", "[]", ()),
    ("choice", "[0] [11] [-1] [\u0664] [99999999999]", ()),
    ("choice", "[1] [2] [3] [4]", (2, 3, 4)),
    ("choice", "[2] [2]", (2,)),
    ("choice", "I take [3]", (3,)),
    ("choice", "[3]\nas it fits", (3,)),
    ("choice", "[3] [none]", ()),
    ("step", "Action: search[a] and lookup[b]", ("search", "a")),
    ("step", "Observation: It says so.\nAction: search[a]", ("search", "a")),
    ("step", "Action: finish[SUPPORTS / REFUTES]", ("", "")),
    ("step", "I could search[a] for it", ("", "")),
    ("step", "Action: fly[away]", ("", "")),
    ("step", "Action: search[a\nb]", ("", "")),
]


def compared(read: Any) -> Any:
    """The action of a step, or of an objection after its text; else the value itself."""
    if isinstance(read, Step):
        return read.action, read.argument
    return read[1] if isinstance(read, tuple) and isinstance(read[0] if read else None, str) else read


@pytest.mark.parametrize(("form", "text", "value"), IN_FORM)
def test_text_in_its_form_is_read(form: str, text: str, value: Any) -> None:
    assert compared(READERS[form](text)) == value


@pytest.mark.parametrize(("form", "text", "value"), OUT_OF_FORM)
def test_text_out_of_its_form_is_malformed_and_read_all_the_same(form: str, text: str, value: Any) -> None:
    with pytest.raises(Malformed) as error:
        READERS[form](text)
    assert compared(error.value.reading[0]) == value
