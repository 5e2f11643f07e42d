"""The words of every kind of step."""

import pytest

from ratchet.agents.core.steps import describe_step
from ratchet.core.records import Event, ModelCall, Note, Passage, Recall, Search, ToolCall

FOUND = (Passage(id="c1", document_id="d1", title="Velm", text="A port.\x1b[2J " + "x" * 200, score=0.5),)
BELOW = "\n  c1  0.50  Velm  A port. " + "x" * 152 + "…"
TIMES = {"at": 0.0, "seconds": 1.0}
CALL = {"role": "actor", "conversation": 0, "start": 0, "end": 1, "finish_reason": "stop", "prompt_tokens": 1}
SEARCH = {"role": "actor", "query": "port\x1b[2J", "k": 2, "offset": 2, **TIMES}
TOOL = {"role": "actor", "source": "s", "tool": "look", "arguments": {"page": "ä"}, **TIMES}


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (ModelCall(**CALL, text="said\x1b[2J", parse="free", new_tokens=1, **TIMES), "actor: said"),
        (
            ModelCall(**CALL, text="sa", parse="malformed", error="cut off", new_tokens=1, **TIMES),
            "actor: sa\n  malformed: cut off",
        ),
        (Search(**SEARCH, passages=FOUND), "actor: searches: port  (index, ranks 3 to 4)" + BELOW),
        (Search(**SEARCH, passages=()), "actor: searches: port  (index, ranks 3 to 4)\n  nothing found"),
        (Search(**SEARCH, passages=(), error="503"), "actor: searches: port  (index, ranks 3 to 4)\n  503"),
        (ToolCall(**TOOL, text="a page"), 'actor: calls look: {"page": "ä"}\n  a page'),
        (ToolCall(**TOOL, error="no page"), 'actor: calls look: {"page": "ä"}\n  no page'),
        (ToolCall(**TOOL, passages=FOUND), 'actor: calls look: {"page": "ä"}' + BELOW),
        (Recall(role="actor", entities=("a",), passages=FOUND, **TIMES), "actor: recalls evidence on: a" + BELOW),
        (Note(role="actor", text="enough", at=0.0), "actor: enough"),
    ],
)
def test_a_step_is_told_in_lines_without_terminal_commands(event: Event, words: str) -> None:
    assert str(describe_step(event)) == words
