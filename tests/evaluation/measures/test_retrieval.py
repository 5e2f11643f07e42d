"""Answer recall and gold recall on fixed cases, and of trajectories that searched, did not, or failed."""

from typing import Any

import pytest

from ratchet.core.records import Passage, Question, Recall, Search, ToolCall, Trajectory
from ratchet.evaluation.measures.retrieval import answer_recall, gold_recall, losses, retrieval_measures


def passage(text: str, title: str = "", document: str = "d1", number: int = 0) -> Passage:
    return Passage(id=f"{document}#{number}", document_id=document, text=text, title=title)


def search(*passages: Passage) -> Search:
    return Search(role="searcher", query="q", k=2, offset=0, passages=passages, at=0.0, seconds=0.0)


def trajectory(*searches: Search, returned: tuple[Passage, ...] = (), **fields: Any) -> Trajectory:
    made = {"system": "s", "policy": "base", "sample": 0, "seed": 0, "status": "finished", "answer": "x"}
    return Trajectory(key="t", question_id="q", events=searches, passages=returned, **{**made, **fields})


@pytest.mark.parametrize(
    ("answers", "text", "found"),
    [
        (["Ada Torrin"], "It was ADA TORRIN, they say.", 1.0),
        (["Ada"], "Canada is far", 0.0),  # whole tokens
        (["Ada"], "An ada-built pier", 1.0),  # a hyphen parts words
        (["twenty-one"], "There were twenty-one.", 1.0),
        (["twenty-one"], "There were twenty one.", 0.0),  # and is a token of its own
        (["12.5"], "about 12.5 miles", 1.0),
        (["5"], "about 12.5 miles", 1.0),
        (["The Torrin"], "A Torrin", 0.0),  # articles count, unlike in EM
        (["Torrin of Velm"], "Torrin of old Velm", 0.0),  # a run, nothing between
        (["Nobody", "Velm"], "in Velm", 1.0),  # any alias
        (["Zo\u00eb"], "Zoe\u0308 said so", 1.0),  # an accent in one sign or two
        (["O'Malley"], "by O\u2019Malley", 1.0),
        (["Zoe"], "Zo\u00eb said so", 0.0),
        (["caf\u00e9"], "a caf\u00e9s b", 0.0),
        (["a_b"], "a_b", 1.0),
        (["कम"], "कमाल", 0.0),  # a vowel sign belongs to its word
        (["北京"], "他住在北京。", 1.0),  # no blanks part words here
        (["harbour"], "a har\u00adbour", 1.0),
        (["harbour"], "nothing here", 0.0),
    ],
)
def test_an_answer_is_found_as_a_run_of_whole_tokens(answers: list[str], text: str, found: float) -> None:
    question = Question(id="q", text="?", answers=tuple(answers))
    assert answer_recall(question, [passage("something else"), passage(text)]) == found


def test_the_title_is_a_part_of_a_passage_but_no_run_crosses_into_the_text() -> None:
    there = [passage("It lies by the sea.", title="Velm")]
    assert answer_recall(Question(id="q", text="?", answers=("Velm",)), there) == 1.0
    assert answer_recall(Question(id="q", text="?", answers=("Velm It",)), there) == 0.0


@pytest.mark.parametrize("answers", [(), ("yes",), ("No.", "noanswer"), ("",), (" ",)])
def test_without_an_answer_to_look_for_there_is_no_answer_recall(answers: tuple[str, ...]) -> None:
    assert answer_recall(Question(id="q", text="?", answers=answers, reference="long"), [passage("yes no")]) is None
    assert answer_recall(Question(id="q", text="?", answers=("yes", "Velm")), [passage("Velm")]) == 1.0


def test_gold_recall_is_a_share_of_documents_by_id_or_by_title() -> None:
    found = [passage("", document="d1"), passage("", document="d1", number=1), passage("", title="Velm", document="d7")]
    assert gold_recall(Question(id="q", text="?", gold_ids=("d1", "d2")), found) == 0.5
    assert gold_recall(Question(id="q", text="?", gold_titles=("Velm", "Orra", "Tarn")), found) == pytest.approx(1 / 3)
    both = Question(id="q", text="?", gold_ids=("x1", "x2"), gold_titles=("Velm", "Orra"))
    assert gold_recall(both, found) == 0.5, "this index has other ids: the titles tell"
    assert gold_recall(both, []) == 0.0
    assert gold_recall(Question(id="q", text="?"), found) is None


@pytest.mark.parametrize(
    "title",
    ['"Ada & Torrin (ship)"', "ada_&amp;_torrin_(ship)", "Ada  &  Torrin (Ship)", "\u201cAda & Torrin (ship)\u201d"],
)
def test_titles_are_the_same_however_a_dump_writes_them(title: str) -> None:
    question = Question(id="q", text="?", gold_titles=("Ada & Torrin (ship)",))
    assert gold_recall(question, [passage("", title=title)]) == 1.0
    assert gold_recall(question, [passage("", title="Ada & Torrin")]) == 0.0


QUESTION = Question(id="q", text="?", answers=("Velm",), gold_ids=("d1", "d2"))


def test_all_searches_count_together_and_what_was_returned_apart() -> None:
    first, second = passage("in Velm", document="d1"), passage("nothing", document="d2")
    made = trajectory(search(first), search(second, first), returned=(second,))
    assert retrieval_measures(QUESTION, made) == {
        "passages": 2.0,
        "answer_recall": 1.0,
        "gold_recall": 1.0,
        "answer_recall_returned": 0.0,
        "gold_recall_returned": 0.5,
    }


def test_nothing_found_is_zero_and_nothing_searched_is_null() -> None:
    empty = retrieval_measures(QUESTION, trajectory(search()))
    assert set(empty.values()) == {0.0}
    never = retrieval_measures(QUESTION, trajectory(returned=(passage("Velm"),)))
    assert set(never.values()) == {None} and set(never) == set(empty)
    failed = trajectory(search(passage("Velm")), returned=(passage("Velm"),), status="failed")
    early = trajectory(status="out_of_budget")
    assert set(retrieval_measures(QUESTION, failed).values()) == {0.0}, "a failure counts as having found nothing"
    assert set(retrieval_measures(QUESTION, early).values()) == {0.0}
    assert set(retrieval_measures(QUESTION, early, retrieves=False).values()) == {None}, (
        "its arm never looks anything up"
    )
    unparsed = retrieval_measures(QUESTION, trajectory(search(passage("Velm")), status="unparsed"))
    assert unparsed["answer_recall"] == 1.0, "what was found was found, whatever became of it"


def test_a_wrong_answer_is_lost_at_one_place_and_a_right_one_at_none() -> None:
    right, other = passage("in Velm"), passage("nothing", document="d2")
    places = {
        "not_retrieved": trajectory(search(other), returned=(other,)),
        "not_returned": trajectory(search(right, other), returned=(other,)),
        "misread": trajectory(search(right, other), returned=(right,)),
    }
    for place, made in places.items():
        assert {name for name, value in losses(QUESTION, made, 0.4).items() if value} == {place}
        assert set(losses(QUESTION, made, 0.5).values()) == {0.0}
        assert set(losses(QUESTION, made, None).values()) == {None}
    assert losses(QUESTION, trajectory(), 0.0)["not_retrieved"] == 1.0, "without a search nothing was retrieved"
    closed = Question(id="q", text="?", answers=("yes",))
    assert set(losses(closed, places["misread"], 0.0).values()) == {None}


def test_what_tools_found_and_what_was_recalled_was_retrieved() -> None:
    question = Question(id="q", text="?", answers=("Velm",), gold_ids=("d2", "d3"))
    call = ToolCall(
        role="r", source="s", tool="t", arguments={}, passages=(passage("x", document="d2"),), at=0, seconds=0
    )
    recall = Recall(role="r", entities=("velm",), passages=(passage("in Velm", document="d3"),), at=0, seconds=0)
    both = retrieval_measures(question, trajectory().model_copy(update={"events": (call, recall)}))
    assert (both["passages"], both["answer_recall"], both["gold_recall"]) == (2.0, 1.0, 1.0)
    nothing = recall.model_copy(update={"passages": ()})
    assert retrieval_measures(question, trajectory().model_copy(update={"events": (nothing,)}))["passages"] is None
