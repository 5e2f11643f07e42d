"""The demo's data: the committed files are the generator's, and every question has one answer, told by the corpus."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from pathlib import Path

import pytest
import Stemmer

from questions.load import load_questions
from ratchet.config import SplitConfig
from ratchet.records import Question
from tools.demo_world.__main__ import generate
from tools.demo_world.names import ENTITY_NAMES, VOCABULARIES

FOLDER = Path(__file__).parents[2] / "demo"
SPLITS = ("train", "dev", "test")
STEMMER = Stemmer.Stemmer("english")

QUESTIONS = {s: load_questions(SplitConfig(path=str(FOLDER / f"{s}.jsonl"))) for s in SPLITS}
ALL = [question for split in SPLITS for question in QUESTIONS[split]]
DOCUMENTS = {d["id"]: d for d in map(json.loads, (FOLDER / "corpus.jsonl").read_text().splitlines())}
CLAIMS = [json.loads(line) for line in (FOLDER / "claims.jsonl").read_text().splitlines()]
VALUES: dict[str, tuple[str, ...]] = {**ENTITY_NAMES, **VOCABULARIES}


def stems(text: str) -> list[str]:
    return STEMMER.stemWords(re.findall(r"\w+", text.lower()))


def holds(text: str, value: str) -> bool:
    return re.search(rf"\b{re.escape(value)}\b", text) is not None


def text_of(document: str) -> str:
    return str(DOCUMENTS[document]["text"])


def vocabulary_of(value: str) -> tuple[str, ...]:
    """Every value that could stand in this one's place."""
    return next(values for values in VALUES.values() if value in values)


def number_in(text: str) -> int:
    (number,) = re.findall(r"\d+", text)
    return int(number)


def test_committed_files_are_what_the_generator_writes() -> None:
    for name, text in generate().items():
        assert (FOLDER / name).read_text() == text, f"{name}: run python -m tools.demo_world --out demo"


def test_another_seed_is_another_world() -> None:
    assert generate(2)["test.jsonl"] != generate(1)["test.jsonl"]
    assert generate(2) == generate(2)


def distance(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[:], i
        for j, b in enumerate(other, 1):
            row[j] = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
    return row[-1]


def test_names_are_far_apart() -> None:
    words = [word.lower() for names in ENTITY_NAMES.values() for name in names for word in name.split()]
    for one, other in itertools.combinations(words, 2):
        assert distance(one, other) >= 3, (one, other)
        assert one not in other and other not in one
        assert STEMMER.stemWord(one) != STEMMER.stemWord(other)


def test_a_value_tells_its_vocabulary() -> None:
    values = [value for values in VALUES.values() for value in values]
    assert len(values) == len(set(values))
    for one, other in itertools.permutations((v for vs in VOCABULARIES.values() for v in vs), 2):
        assert not holds(other, one), (one, other)


def test_documents_are_short_and_name_their_subject() -> None:
    assert 150 <= len(DOCUMENTS) <= 220
    for document in DOCUMENTS.values():
        assert len(document["text"].split()) <= 60
        assert 3 <= document["text"].count(".") <= 5
        assert document["text"].count(document["title"]) >= 2
        assert set(document) == {"id", "title", "text"}
    assert len({d["title"] for d in DOCUMENTS.values()}) == len(DOCUMENTS)


def test_sizes_and_mix() -> None:
    for split, size in (("train", 120), ("dev", 90), ("test", 120)):
        kinds = Counter(question.kind for question in QUESTIONS[split])
        assert sum(kinds.values()) == size
        assert kinds["one_hop"] == 0.6 * size
        assert kinds["two_hop"] >= 0.25 * size
        assert kinds["comparison"] >= 0.13 * size
    assert len({question.id for question in ALL}) == len(ALL) == len({question.text for question in ALL})


def test_splits_share_no_gold_document_and_no_subject() -> None:
    gold = {split: {i for q in QUESTIONS[split] for i in q.gold_ids} for split in SPLITS}
    for claim in CLAIMS:
        gold[claim["id"].split("-")[0]].update(claim["gold_ids"])
    for one, other in itertools.combinations(SPLITS, 2):
        assert not gold[one] & gold[other]
        titles = [DOCUMENTS[i]["title"] for i in gold[other]]
        assert not [(q.text, t) for q in QUESTIONS[one] for t in titles if holds(q.text, t)]


@pytest.mark.parametrize("question", ALL, ids=lambda question: question.id)
def test_the_corpus_determines_one_answer(question: Question) -> None:
    texts = [text_of(i) for i in question.gold_ids]
    answer = question.answers[0]
    assert len(answer.split()) <= 3
    assert all(holds(" ".join(texts), alias) for alias in question.answers)
    assert question.reference and 1 <= len(question.nuggets) <= 3
    assert all(holds(question.reference, nugget) for nugget in question.nuggets)
    # The question names the subject of its first document (and a comparison that of its second one).
    named = {i for i, d in DOCUMENTS.items() if holds(question.text, d["title"])}
    if question.kind == "comparison":
        assert named == set(question.gold_ids)
        assert answer == DOCUMENTS[winner_of(question)]["title"]
        return
    assert named == {question.gold_ids[0]}
    if question.kind == "two_hop":
        bridge = DOCUMENTS[question.gold_ids[1]]["title"]
        candidates = [v for v in vocabulary_of(bridge) if holds(texts[0], v)]
        assert candidates == [bridge]
        assert not holds(texts[0], answer) and not holds(question.text, bridge)
    if answer.isdigit():
        assert number_in(texts[-1]) == int(answer)
    else:
        assert [v for v in vocabulary_of(answer) if holds(texts[-1], v)] == [answer]


def winner_of(question: Question) -> str:
    """The gold document that wins, from the numbers in the documents and the comparing word of the question."""
    numbers = {i: number_in(text_of(i)) for i in question.gold_ids}
    is_year = question.gold_ids[0].split("-")[0] in ("town", "ferry", "person", "guild")
    larger = re.search(r"\b(more|longer|taller|later|younger|newer)\b", question.text)
    smaller = re.search(r"\b(fewer|shorter|lower|first|older)\b", question.text)
    assert bool(larger) != bool(smaller)
    one, other = numbers.values()
    assert abs(one - other) >= (8 if is_year else min(one, other) / 4)
    return (max if larger else min)(numbers, key=lambda i: numbers[i])


def bm25(query: str) -> list[str]:
    counts = {i: Counter(stems(f"{d['title']} {d['text']}")) for i, d in DOCUMENTS.items()}
    mean = sum(c.total() for c in counts.values()) / len(counts)
    scores: dict[str, float] = dict.fromkeys(counts, 0.0)
    for word in set(stems(query)):
        matching = [i for i in counts if counts[i][word]]
        weight = math.log(1 + (len(counts) - len(matching) + 0.5) / (len(matching) + 0.5))
        for i in matching:
            n, length = counts[i][word], counts[i].total()
            scores[i] += weight * n * 2.2 / (n + 1.2 * (0.25 + 0.75 * length / mean))
    return sorted(scores, key=lambda i: (-scores[i], i))


@pytest.mark.slow
def test_bm25_finds_the_first_gold_document() -> None:
    for kind, share in (("one_hop", 0.9), ("comparison", 0.9), ("two_hop", 0.8)):
        asked = [q for q in ALL if q.kind == kind]
        found = [q.gold_ids[0] in bm25(q.text)[:2] for q in asked]
        assert sum(found) >= share * len(found), kind


def test_claims_are_balanced_and_decided_by_their_documents() -> None:
    assert Counter(c["label"] for c in CLAIMS) == {"SUPPORTS": 40, "REFUTES": 40, "NOT ENOUGH INFO": 40}
    assert len({c["claim"] for c in CLAIMS}) == len({c["id"] for c in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        if claim["label"] == "NOT ENOUGH INFO":
            assert claim["gold_ids"] == []
            continue
        said = claimed_value(claim["claim"], claim["gold_ids"])
        assert holds(text_of(claim["gold_ids"][-1]), said) == (claim["label"] == "SUPPORTS"), claim


def claimed_value(claim: str, gold_ids: list[str]) -> str:
    """The value that the claim states: a number, or the one known value in it beside the names of its documents."""
    numbers = re.findall(r"\d+", claim)
    if numbers:
        return str(numbers[0])
    first = DOCUMENTS[gold_ids[0]]["title"].removesuffix(" Guild")
    (value,) = [v for values in VALUES.values() for v in values if holds(claim, v) and v != first]
    return str(value)


def test_undecidable_claims_are_told_nowhere() -> None:
    """No document about the claim's subject holds a value of the vocabulary that the claim takes its own from."""
    for claim in (c for c in CLAIMS if c["label"] == "NOT ENOUGH INFO"):
        subject = next(i for i, d in DOCUMENTS.items() if holds(claim["claim"], d["title"]))
        value = claimed_value(claim["claim"], [subject])
        about = text_of(subject)
        linked = [i for i, d in DOCUMENTS.items() if i != subject and holds(about, d["title"])]
        direct = claim["claim"].removeprefix("The ").startswith(DOCUMENTS[subject]["title"])
        for document in [subject] if direct else linked:
            assert not holds(text_of(document), value), claim
