"""`ratchet.play`: an episode on written replies, by the rules of sampling."""

from typing import Any

import pytest

from ratchet import Question, play
from ratchet.core.errors import UserError

ASKED = "Who built the harbour of Velm?"
TEXT = "Ada Torrin built the harbour of Velm."


def test_a_built_in_system_plays_with_its_prompts_and_settings() -> None:
    reply = '{"answer": "Ada Torrin"}'
    done = play("vanilla_rag", [reply], ASKED, [TEXT, "Another."], settings={"style": "brief"})
    assert (done.status, done.answer, done.policy) == ("finished", "Ada Torrin", "base")
    assert [passage.text for passage in done.passages] == [TEXT, "Another."]
    assert done.token_exact and done.model_calls[0].new_tokens == len(reply) + 1, "a byte a token, and the end"


def test_replies_are_also_objects_and_are_read_as_strictly_as_a_grammar_writes_them() -> None:
    config: dict[str, Any] = {"settings": {"style": "brief", "agents": ["searcher"], "explanations": False}}
    found = {"velm": [TEXT]}
    replies: list[dict[str, Any]] = [
        {"agent": "searcher"},
        {"search_query": "velm"},
        {"relevance": [True], "end_search": True},
    ]
    done = play(
        "mrag", [*replies, {"agent": "answerer"}, {"answer": "Ada"}, {"agent": "finisher"}], ASKED, found, **config
    )
    assert done.answer == "Ada" and [search.query for search in done.searches] == ["velm"]
    loose = play("mrag", ["I choose {agent: 'searcher'}"], ASKED, **config)
    assert loose.status == "unparsed"


def test_where_the_replies_run_out_the_trajectory_says_so() -> None:
    done = play("vanilla_rag", [], ASKED)
    assert done.status == "failed" and "only 0 replies" in done.error


def test_a_question_may_have_labels_and_a_function_may_reply() -> None:
    claim = Question.model_validate(
        {"id": "c", "text": TEXT, "form": "claim", "labels": [{"name": name, "meaning": ""} for name in ("TRUE", "NO")]}
    )
    done = play("cot", lambda prompt, params, messages: "Final Verdict: TRUE" if TEXT in prompt else "?", claim)
    assert done.answer == "TRUE", done


@pytest.mark.parametrize(
    ("system", "config", "message"),
    [
        ("mrga", {}, "did you mean 'mrag'"),
        ("mrag", {"setings": {}}, "setings: unknown key"),
        ("gone.py", {}, "there is no file gone.py"),
    ],
)
def test_a_wrong_system_is_named(system: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        play(system, [], ASKED, **config)
