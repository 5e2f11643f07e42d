"""What counts as a leak, checked against a plain search through all pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from questions.leakage import find_leakage, jaccard, normalise_words, word_shingles
from ratchet.records import Question

WORDS = st.lists(st.sampled_from(["who", "rules", "the", "isle", "of", "Velm", "tarn?"]), max_size=9).map(" ".join)
ASKED = st.lists(WORDS, max_size=9)


def questions(name: str, texts: list[str]) -> list[Question]:
    return [Question(id=f"{name}{i}", text=text) for i, text in enumerate(texts)]


@given(ASKED, ASKED, st.sampled_from([0.1, 0.3, 0.5, 2 / 3, 0.8, 1.0]))
def test_it_finds_what_a_look_at_every_pair_finds(train: list[str], test: list[str], near: float) -> None:
    leaks = find_leakage(questions("a", train), questions("b", test), near)
    exact = {f"b{j}" for j, text in enumerate(test) if normalise_words(text) in map(normalise_words, train)}
    assert {leak.test for leak in leaks.exact} == exact
    best: dict[str, float] = {}
    for j, text in enumerate(test):
        runs = word_shingles(normalise_words(text))
        scores = [
            jaccard(word_shingles(normalise_words(t)), runs) for t in train if word_shingles(normalise_words(t)) | runs
        ]
        if f"b{j}" not in exact and scores and max(scores) >= near:
            best[f"b{j}"] = max(scores)
    assert {leak.test: leak.score for leak in leaks.near} == best
    for leak in leaks.near:
        one, other = train[int(leak.train[1:])], test[int(leak.test[1:])]
        assert jaccard(word_shingles(normalise_words(one)), word_shingles(normalise_words(other))) == leak.score


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("Who rules Velm?", "who rules  VELM", "exact"),
        ("Who rules “Velm”?", 'Who rules "Velm"', "exact"),
        ("Ｗho rules Velm", "Who rules Velm", "exact"),
        ("who was the first king of the isle of Velm", "so who was the first king of the isle of Velm?", "near"),
        ("Velm ruler", "ruler, Velm", "near"),  # too short for runs: its words
        ("Velm ruler", "Velm ruler now", ""),
        ("Who was the father of Ada Pell?", "Who was the father of Jory Fenn?", ""),  # one template, two questions
        ("?", "!", ""),
        ("!", " ! ", "exact"),
    ],
)
def test_the_same_question_in_other_dress(one: str, other: str, kind: str) -> None:
    leaks = find_leakage(questions("a", [one]), questions("b", [other]), near=0.8)
    assert [leak.kind for leak in leaks.questions] == ([kind] if kind else [])


def test_a_shared_gold_document_is_one_by_id_or_by_title() -> None:
    train = [
        Question(id="a", text="Who?", gold_ids=("d1", "d2")),
        Question(id="b", text="Where?", gold_titles=("Isle of Velm",)),
    ]
    test = [
        Question(id="c", text="When was it?", gold_ids=("d2", "d3")),
        Question(id="d", text="Why is it?", gold_titles=("isle of velm",)),
        Question(id="e", text="What is it?", gold_titles=("d1",), gold_ids=("Isle of Velm",)),
    ]
    found = [(leak.test, leak.train, leak.score) for leak in find_leakage(train, test, 0.8).documents]
    assert found == [("c", "a", 0.5), ("d", "b", 1.0)]
