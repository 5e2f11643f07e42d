from __future__ import annotations

import pytest
from reward_cases import trajectory

from ratchet.records import Passage, Question
from rewards.rules import (
    exact_match,
    lexical_support,
    normalise_answer,
    nugget_containment,
    rule_score,
    token_f1,
)


def passage(text: str, title: str = "") -> Passage:
    return Passage(id="p", document_id="d", text=text, title=title)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Harbour,\tof Velm!", "harbour of velm"),
        ("U.S.A.", "usa"),  # punctuation is deleted, not turned into a blank
        ("twenty-one", "twentyone"),
        ("An apple a day", "apple day"),
        ("Theatre", "theatre"),  # an article inside a word stays
        ("the", ""),
        ("a.b", "ab"),  # punctuation goes before articles do: no word 'a' is left over
        ("1,204", "1204"),
        ("“Velm”", "“velm”"),  # the published scorers know ASCII punctuation alone
    ],
)
def test_normalisation_follows_the_published_scorers(text: str, normal: str) -> None:
    assert normalise_answer(text) == normal


def test_exact_match_is_best_over_aliases() -> None:
    assert exact_match("the Ada Torrin.", ["A. Torrin", "Ada Torrin"]) == 1.0
    assert exact_match("Ada Torrin, engineer", ["A. Torrin", "Ada Torrin"]) == 0.0


@pytest.mark.parametrize(
    ("answer", "references", "f1"),
    [
        ("Ada Torrin", ["Ada Torrin"], 1.0),
        ("the engineer Ada Torrin", ["Ada Torrin"], 0.8),  # precision 2/3, recall 1
        ("Torrin Torrin", ["Torrin Ada Torrin"], 0.8),  # repeated words count: precision 1, recall 2/3
        ("Torrin", ["Ada", "Torrin Ada"], pytest.approx(2 / 3)),
        ("", ["Ada"], 0.0),
        ("yes", ["yes"], 1.0),
        ("yes it is", ["yes"], 0.0),  # exactly one side is a closed answer
        ("no", ["no harbour"], 0.0),
        ("noanswer", ["yes"], 0.0),
    ],
)
def test_token_f1(answer: str, references: list[str], f1: float) -> None:
    assert token_f1(answer, references) == f1


def test_without_references_there_is_no_number() -> None:
    with pytest.raises(ValueError, match="null"):
        exact_match("Ada", [])


def test_nugget_containment_wants_whole_words() -> None:
    assert nugget_containment("It was Ada Torrin, in 1204.", ["ada torrin", "1204"]) == 1.0
    assert nugget_containment("Adam Torrins", ["Adam Torrin"]) == 0.0
    assert nugget_containment("the year 1204", ["1204", "the engineer"]) == 0.5
    assert nugget_containment("", ["1204"]) == 0.0
    assert nugget_containment("1204", ["...", "1204"]) == 1.0  # a nugget without words does not count
    assert nugget_containment("1204", []) is None


def test_lexical_support_counts_distinct_content_words() -> None:
    documents = [passage("Ada Torrin built—long ago—the “harbour”.", title="Velm")]
    assert lexical_support("Ada Torrin built the harbour of Velm", documents) == 1.0
    assert lexical_support("Ada Ada Ada Smith", documents) == 0.5  # saying it again supports nothing more
    assert lexical_support("long harbour", documents) == 1.0  # dashes and curly quotes part words
    assert lexical_support("Ada Torrin", []) == 0.0
    assert lexical_support("", documents) is None
    assert lexical_support("Yes, it was.", documents) is None


def test_scores_are_null_with_a_reason_where_they_cannot_be_told() -> None:
    bare = Question(id="q1", text="Where is Velm?")
    answered = trajectory(answer="by the sea")
    for name in ("em", "f1", "nugget_containment"):
        score = rule_score(name, bare, answered)
        assert score.value is None
        assert "question has no" in score.reason
    full = Question(id="q1", text="Where?", answers=("by the sea",), nuggets=("sea",))
    failed = rule_score("em", full, trajectory(answer="by the sea", status="failed"))
    assert (failed.value, failed.reason) == (None, "the trajectory failed")
    assert rule_score("em", full, trajectory(answer="", status="unparsed")).value == 0.0
    assert rule_score("f1", Question(id="q1", text="?", reference="By the sea."), answered).value == 1.0
