"""Categories, the division of the corpus, and the plan: what is decided before a model is asked."""

import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given as cases
from hypothesis import settings as run
from hypothesis import strategies as st

from ratchet.core.config import SPLITS
from ratchet.core.errors import UserError
from ratchet.question_generation.corpus import Pool, divide_documents
from ratchet.question_generation.generate import Plan
from ratchet.question_generation.prompts import DEFAULT_CATEGORIES, load_categories
from tests.helpers.making import corpus, settings

PUBLISHED = {
    name: {category: float(share) for category, share in re.findall(r"(\S[^,]*?) ([\d.]+)(?:, |$)", categories)}
    for name, categories in {
        "user_expertise": "expert 0.5, novice 0.5",
        "question_type": "concise and natural 0.35, verbose and natural 0.35, short search query 0.1, "
        "long search query 0.1, concise and fancy 0.05, verbose and fancy 0.05",
        "answer_type": "concise and natural 0.4, verbose and natural 0.4, concise and fancy 0.1, verbose and fancy 0.1",
        "answer_intent": "factoid 0.5, open-ended 0.5",
        "premise_inclusion": "without premise 0.7, with premise 0.3",
        "question_intent": "clarification 0.2, opinion 0.2, comparison 0.2, yes/no 0.2, hypothetical 0.2",
        "lexical_similarity": "similar to document 0.3, distant from document 0.4, unpopular entities 0.3",
        "aspect_granularity": "single-aspect 0.5, multi-aspect 0.5",
        "interaction_type": "single-turn 0.5, two-turn 0.5",
        "document_granularity": "single-doc 0.5, multi-doc 0.5",
    }.items()
}
ADDED = [
    {"answer_intent", "lexical_similarity"},
    {"premise_inclusion"},
    {"question_intent"},
    {"premise_inclusion", "question_intent"},
    {"lexical_similarity", "premise_inclusion"},
]


def test_the_categories_are_the_published_ones() -> None:
    ours = load_categories()
    assert {
        name: {category: choice.probability for category, choice in choices.items()}
        for name, choices in ours.categorisations.items()
    } == PUBLISHED
    assert all(c.definition for choices in ours.categorisations.values() for c in choices.values())
    assert [set(names) for names in ours.combinations] == ADDED
    assert set(ours.common) == PUBLISHED.keys() - set().union(*ADDED)


def test_categories_are_drawn_by_their_probability_and_combinations_alike() -> None:
    ours = load_categories()
    drawn = [ours.draw(random.Random(seed)) for seed in range(4000)]
    combinations = Counter(number for number, _ in drawn)
    assert set(combinations) == {1, 2, 3, 4, 5} and all(abs(n / 4000 - 0.2) < 0.03 for n in combinations.values())
    for number, categories in drawn:
        assert categories.keys() == {*ours.common, *ADDED[number - 1]}
    for name, choices in PUBLISHED.items():
        counts = Counter(categories[name] for _, categories in drawn if name in categories)
        for category, probability in choices.items():
            assert abs(counts[category] / counts.total() - probability) < 0.05, (name, category)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("novice: {probability: 0.5", "novice: {probability: 0.4", "user_expertise: the probabilities sum to 0.9"),
        ("multi-doc: {", "multi-docs: {", "did you mean 'multi-doc'"),
        ("- [question_intent]", "- [question_intend]", "did you mean 'question_intent'"),
        ("form: search", "form: keyword", "form"),
    ],
)
def test_a_faulty_categories_file_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    text = DEFAULT_CATEGORIES.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        load_categories(path)


@run(max_examples=25, deadline=None)
@cases(st.integers(0, 5), st.integers(0, 5), st.integers(1, 5), st.integers(0, 1000))
def test_no_document_is_in_two_splits_and_none_is_lost(train: int, dev: int, test: int, seed: int) -> None:
    made = settings(questions={"train": train, "dev": dev, "test": test})
    documents = corpus(80)
    pools = divide_documents(documents, made, seed).pools
    assert sorted(d.id for pool in pools.values() for d in pool.documents) == sorted(d.id for d in documents)
    for split in SPLITS:
        share = made.wanted(split) / (train + dev + test)
        assert abs(len(pools[split].documents) / 80 - share) < 0.25
    assert divide_documents(reversed(documents), made, seed).pools == pools, "the order of the corpus does not matter"


def test_copies_of_a_document_count_once_and_so_share_a_split() -> None:
    documents = corpus(40)
    copies = [replace(d, id=f"z-{d.id}", text=f"  {d.text.upper()}!") for d in documents]
    divided = divide_documents([*copies, *documents], settings(), 1)
    assert divided.counts["copies"] == 40
    assert divided.pools == divide_documents(documents, settings(), 1).pools


def test_a_large_corpus_is_sampled_and_documents_of_other_lengths_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [
        *corpus(60),
        replace(corpus(1)[0], id="short", text="Too short."),
        replace(corpus(1)[0], id="long", text="w " * 201),
    ]
    whole = divide_documents(documents, settings(), 1)
    monkeypatch.setattr("ratchet.question_generation.corpus.MAX_DOCUMENTS", 5)
    divided = divide_documents(documents, settings(), 1)
    assert [len(divided.pools[split].documents) for split in SPLITS] == [5, 5, 5]
    assert divided.counts == {"read": 62, "too short": 1, "too long": 1, "copies": 0}
    for split in SPLITS:
        assert divided.pools[split].documents == whole.pools[split].documents[:5]


def test_no_documents_of_the_wanted_length_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(UserError, match=r"generation\.document_words"):
        divide_documents(corpus(10), settings(document_words=[100, 200]), 1)


def test_a_second_document_is_related_to_the_first() -> None:
    pool = Pool(tuple(corpus(300)))
    for number in range(300):
        others = pool.related(number)
        assert len(others) == 3 and number not in others
        assert all(other // 5 == number // 5 for other in others), "on the same river"
    first, second = pool.draw(20, two=True, rng=random.Random(1))
    assert first.id == "d20" and second.id in {"d21", "d22", "d23", "d24"}
    assert [d.id for d in pool.draw(307, two=False, rng=random.Random(1))] == ["d7"]
    lonely = Pool(tuple(corpus(1)))
    assert lonely.draw(7, two=True, rng=random.Random(1)) == ()


def test_the_plan_is_the_same_again_and_uses_every_document_before_one_twice() -> None:
    made, categories = settings(), load_categories()
    divided = divide_documents(corpus(60), made, 1)
    plan = Plan(made, 1, categories)
    planned = plan.questions()
    assert planned == plan.questions() and planned != Plan(made, 2, categories).questions()
    assert Counter(w.split for w in planned) == {"train": 6, "dev": 3, "test": 3}
    tasks = [plan.attempt(w, attempt, divided) for attempt in range(2) for w in planned]
    assert tasks == [plan.attempt(w, attempt, divided) for attempt in range(2) for w in planned]
    assert len({candidate.key for candidate, _ in tasks}) == len(tasks)
    for candidate, documents in tasks:
        two = candidate.categories["document_granularity"] == "multi-doc"
        assert len({d.id for d in documents}) == (2 if two else 1)
        assert set(documents) <= set(divided.pools[candidate.split].documents)
    singles = [documents[0].id for _, documents in tasks if len(documents) == 1]
    assert len(set(singles)) == len(singles)
