"""system.py without a model: the replies are written here. Run it with `pytest test_system.py`."""

from pathlib import Path

from ratchet import play

SYSTEM = Path(__file__).with_name("system.py")
QUESTION = "Who built the harbour of Velm?"
SEARCH = {"enough": False, "query": "harbour of Velm"}
STOP = {"enough": True, "query": ""}


def test_it_searches_and_answers_from_what_it_found():
    found = {"harbour of Velm": ["Ada Torrin built the harbour of Velm."]}
    done = play(SYSTEM, [SEARCH, STOP, {"answer": "Ada Torrin"}], QUESTION, found)
    assert (done.status, done.answer) == ("finished", "Ada Torrin")
    assert [search.query for search in done.searches] == ["harbour of Velm"]
    assert [passage.text for passage in done.passages] == found["harbour of Velm"]


def test_the_searches_are_limited():
    done = play(SYSTEM, [SEARCH, {"answer": "unknown"}], QUESTION, settings={"searches": 1})
    assert len(done.searches) == 1 and done.status == "finished"


def test_a_reply_that_is_cut_off_is_no_answer():
    done = play(SYSTEM, [STOP, {"answer": "Ada Torrin"}], QUESTION, roles={"answerer": {"max_tokens": 12}})
    assert done.status == "unparsed" and "cut off" in done.error
