"""Names that look like stop words, or that particles are joined to, and BM25's settings when an index is opened."""

import math
from pathlib import Path

import pytest

from ratchet.core.config import IndexConfig
from ratchet.core.words import split_words
from ratchet.index_build.build import build_index
from ratchet.retrieval.index import Index
from ratchet.retrieval.opening import open_index
from tests.helpers.tiny_index import index_config, shared_tokenizer

TEXTS = {
    "hepatitis A": "Hepatitis A is spread by food and by water that is not clean.",
    "hepatitis B": "Hepatitis B is spread by blood and at birth, and it may last for years.",
    "vitamin C": "Vitamin C does much for the skin and the gums.",
    "vitamin D": "Vitamin D lets the bones take in calcium.",
    "Elizabeth I": "Elizabeth I did not marry. She died in the year 1603, and a cousin was her heir.",
    "Elizabeth II": "Elizabeth II died in the year 2022. She had been a queen for 70 years.",
    "Model A": "The Ford Model A came in four colours. The Ford Model A was a car of 1927.",
    "Model T": "The Ford Model T was the car that many could pay for.",
    "WHO": "The WHO is an agency of the United Nations for health.",
    "Hamlet": "To be, or not to be: so begins a speech in a play about a prince.",
    "It": "It is a book about a clown. He wrote It in the year 1986.",
    "Will Smith": "Will Smith has been in many films as an actor.",
    "Adam Smith": "Adam Smith wrote on trade. Smith taught, and Smith is read to this day.",
    "서울": "서울특별시는 한강이 흐르는 도시이다.",
    "부산": "부산광역시는 바다가 있는 도시이다.",
    "AI": "AI는 인공지능을 뜻한다.",
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> IndexConfig:
    documents = [{"id": name, "text": text} for name, text in TEXTS.items()]
    made = index_config(tmp_path_factory.mktemp("names"), documents)
    build_index(made, shared_tokenizer(), "tiny")
    return made


@pytest.mark.parametrize("stop_words", ["english", "long"])
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("How is hepatitis A spread?", "hepatitis A"),
        ("What does vitamin D do?", "vitamin D"),
        ("When did Elizabeth I die?", "Elizabeth I"),
        ("Ford Model T", "Model T"),
        ("What is the WHO?", "WHO"),
        ("The Who", "WHO"),
        ("to be or not to be", "Hamlet"),
        ("Who wrote It?", "It"),
        ("Will Smith", "Will Smith"),
        ("서울", "서울"),
        ("서울의 도시", "서울"),
        ("부산", "부산"),
        ("인공지능", "AI"),
        ("What is AI?", "AI"),
    ],
)
def test_names_are_found(config: IndexConfig, query: str, found: str, stop_words: str) -> None:
    assert opened(config, stop_words=stop_words).search(query, 3)[0].document_id == found


def scores(index: Index, query: str) -> dict[str, float]:
    return {passage.document_id: passage.score for passage in index.search(query, 100)}


def opened(config: IndexConfig, **settings: object) -> Index:
    index = open_index(config.model_copy(update=settings))
    assert isinstance(index, Index)
    return index


def test_stop_words_count_when_an_index_is_opened(config: IndexConfig) -> None:
    every, some = opened(config, stop_words="none"), opened(config)
    assert scores(some, "the clown") == scores(some, "clown") != scores(every, "the clown")
    assert scores(opened(config, stop_words=("clown",)), "a clown") == scores(every, "a")
    assert len({every.digest, some.digest, opened(config, stop_words=("clown",)).digest}) == 3


def test_k1_and_b_count_when_an_index_is_opened(tmp_path: Path) -> None:
    """As if it had been built with them: the formula's scores, whatever the codes of postings were made with."""
    chunks = {name: split_words(text) for name, text in TEXTS.items() if text.isascii()}
    documents = [{"id": name, "text": " ".join(words)} for name, words in chunks.items()]
    index = index_config(tmp_path, documents, stemmer=None)
    build_index(index, shared_tokenizer(), "tiny")
    mean = sum(map(len, chunks.values())) / len(chunks)
    holders = sum("smith" in words for words in chunks.values())
    for k1, b in ((0.9, 0.4), (1.2, 0.75), (2.5, 1.0), (0.3, 0.0), (0.0, 0.5)):
        expected = {}
        for name, words in chunks.items():
            tf = words.count("smith")
            if tf:
                norm = k1 * (1 - b + b * len(words) / mean)
                idf = math.log(1 + (len(chunks) - holders + 0.5) / (holders + 0.5))
                expected[name] = idf * tf / (tf + norm)
        found = opened(index, k1=k1, b=b)
        assert scores(found, "smith") == pytest.approx(expected, rel=1e-12)
    assert opened(index, k1=1.2).digest != opened(index).digest


def test_what_a_kind_or_a_server_does_not_take_is_refused_by_name() -> None:
    for settings, said in (
        ({"path": "x", "kind": "dense", "k1": 1.2}, "kind: dense takes no k1"),
        ({"path": "x", "kind": "sparse", "engine": "milvus", "stop_words": "none"}, "kind: sparse takes no stop_words"),
        ({"url": "http://127.0.0.1:1", "b": 0.5}, "b is set where the index is served"),
    ):
        with pytest.raises(ValueError, match=said):
            IndexConfig(**settings)
    assert IndexConfig(path="x", kind="dense", k1=0.9, b=0.4, stop_words="english"), "a run folder states every setting"
