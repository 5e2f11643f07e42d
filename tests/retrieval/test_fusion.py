"""Fused searches: against reciprocal rank fusion as its paper writes it, over indexes that are really built."""

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.commands.main import run as ratchet
from ratchet.core.config import IndexConfig, parse
from ratchet.core.config.retrieval import FusionConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Passage
from ratchet.retrieval.fusion import FusedIndex
from ratchet.retrieval.index import store_of
from ratchet.retrieval.layout import index_digest
from ratchet.retrieval.opening import open_index
from tests.helpers.building import corpus, queries
from tests.helpers.configs import write_config
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.tiny_index import tiny_index, write_documents


class Fixed:
    """A retriever with one ranking, whatever is asked for."""

    def __init__(self, ids: Sequence[str], text: str = "text") -> None:
        self.digest = "-".join(ids)
        self._passages = [
            Passage(id=id, document_id=id, text=f"{text} of {id}", score=-float(rank)) for rank, id in enumerate(ids)
        ]

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        return self._passages[offset : offset + k]


RANKING = st.permutations([f"d{number}" for number in range(8)]).map(lambda ids: ids[:5])


@given(rankings=st.lists(RANKING, min_size=2, max_size=4), k=st.integers(0, 60), depth=st.integers(1, 6))
def test_is_the_sum_of_reciprocal_ranks(rankings: list[list[str]], k: int, depth: int) -> None:
    """In exact fractions; of equal ones, the first found by the first part comes first, and pages fit together."""
    parts = {f"p{at}": Fixed(ids) for at, ids in enumerate(rankings)}
    index = FusedIndex(parts, FusionConfig(k=k, depth=depth))
    expected: dict[str, Fraction] = {}
    for ids in rankings:
        for rank, id in enumerate(ids[:depth], 1):
            expected[id] = expected.get(id, Fraction(0)) + Fraction(1, k + rank)
    found = index.search("q", 20)
    assert [passage.id for passage in found] == sorted(expected, key=lambda id: -expected[id])
    assert [passage.score for passage in found] == pytest.approx([float(expected[p.id]) for p in found])
    for passage in found:
        assert {name: place.rank for name, place in passage.ranks.items()} == {
            f"p{at}": ids.index(passage.id) + 1 for at, ids in enumerate(rankings) if passage.id in ids[:depth]
        }
    assert [*index.search("q", 2), *index.search("q", 3, 2), *index.search("q", 20, 5)] == found


def test_one_id_for_two_texts_is_refused() -> None:
    index = FusedIndex({"words": Fixed(["a", "b"]), "meaning": Fixed(["c", "b"], "else")}, FusionConfig())
    with pytest.raises(UserError, match=r"meaning has another text under the id b than words.*build them together"):
        index.search("q", 1)


def parts_of(folder: Path, **more: Any) -> dict[str, Any]:
    documents = str(folder / "documents.jsonl")
    parts = {"sharp": {"k1": 0.2, "b": 1.0, "stemmer": None}, "flat": {"k1": 3.0, "b": 0.0}}
    return {"path": str(folder / "fused"), "documents": [documents], "kind": "fused", "parts": parts, **more}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that the command has indexed twice, from one config."""
    folder = tmp_path_factory.mktemp("fused")
    write_documents(folder / "documents.jsonl", corpus(60))
    save_tiny_tokenizer(folder / "model")
    config = write_config(folder, index=parts_of(folder, chunk_tokens=20, chunk_overlap=5))
    ratchet(["index", "--config", str(config)])
    return folder


def test_parts_on_disk_are_fused_as_their_passages_are(built: Path) -> None:
    """By numbers of common chunks, as by the passages of retrievers that have no chunks in common."""
    config = parse(IndexConfig, parts_of(built, fusion={"depth": 7}), "x.yaml")
    index = open_index(config)
    assert isinstance(index, FusedIndex) and store_of(index) is not None
    assert index.digest == index_digest(config)
    apart = FusedIndex(index.parts, config.fusion)
    apart.store = None
    asked = queries(20)
    found = index.search_batch(asked, 12)
    assert found == apart.search_batch(asked, 12) == [apart.search(query, 12) for query in asked]
    assert any(len(passage.ranks) == 1 for passage in found[0]) and any(len(p.ranks) == 2 for p in found[0])
    text = found[0][0].model_dump_json()
    assert set(json.loads(text)["ranks"]) <= {"sharp", "flat"} and Passage.model_validate_json(text) == found[0][0]
    assert "ranks" not in index.parts["flat"].search(asked[0], 1)[0].model_dump()


def test_a_digest_tells_the_parts_and_the_settings_apart(built: Path) -> None:
    ways = [
        parts_of(built),
        parts_of(built, fusion={"k": 10}),
        parts_of(built, fusion={"depth": 10}),
        parts_of(built) | {"parts": dict(reversed(parts_of(built)["parts"].items()))},
        parts_of(built) | {"parts": parts_of(built)["parts"] | {"flat": {"k1": 2.0, "b": 0.0}}},
    ]
    assert len({index_digest(parse(IndexConfig, way, "x.yaml")) for way in ways}) == len(ways)
    elsewhere = parts_of(built, path=str(built / "nowhere"))
    assert index_digest(parse(IndexConfig, elsewhere, "x.yaml")) is None


def test_the_command_builds_what_is_missing_and_searches(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(built, index=parts_of(built, chunk_tokens=20, chunk_overlap=5))
    ratchet(["index", "--config", str(config)])
    assert capsys.readouterr().out.count("already built, nothing to do") == 2
    ratchet(["search", queries(1)[0], "--config", str(config), "-k", "1"])
    out = capsys.readouterr().out
    assert "(" in out and "sharp" in out and "flat" in out


def test_documents_and_chunks_are_those_of_the_whole(built: Path) -> None:
    config = parse(IndexConfig, parts_of(built, chunk_tokens=99, tokenizer="words"), "x.yaml")
    assert {(part.chunk_tokens, part.tokenizer, part.documents) for part in config.built.values()} == {
        (99, "words", config.documents)
    }
    assert [Path(part.path).name for part in config.built.values()] == ["sharp", "flat"]
    assert parse(IndexConfig, config.model_dump(mode="json"), "x.yaml") == config


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"parts": {}}, "kind: fused and parts go together"),
        ({"kind": "bm25"}, "kind: fused and parts go together"),
        ({"parts": {"a": {}}}, "name two indexes or more"),
        ({"k1": 2.0}, "kind: fused takes no k1"),
        ({"parts": {"a": {}, "b": {"kind": "fused", "parts": {"c": {}, "d": {}}}}}, "a part is not fused itself"),
        ({"parts": {"a": {}, "b": {"kid": "bm25"}}}, r"parts\.b\.kid: unknown key"),
        ({"path": ""}, r"parts\.sharp: path is missing"),
    ],
)
def test_what_cannot_be_fused_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parse(IndexConfig, parts_of(tmp_path) | changes, "x.yaml")


def test_other_indexes_dump_as_before() -> None:
    """Digests of run folders are made of this."""
    assert not {"source", "parts", "fusion"} & set(IndexConfig(path="x").model_dump())
    with pytest.raises(UserError, match="fusion goes with kind: fused"):
        parse(IndexConfig, {"path": "x", "fusion": {"k": 3}}, "x.yaml")


def test_a_plain_index_has_its_chunks_and_a_stranger_has_none(tmp_path: Path) -> None:
    index = tiny_index(tmp_path, corpus(3))
    assert store_of(index) is index.store and store_of(Fixed(["a"])) is None
    assert [passage.document_id for passage in index.store.documents(["d2", "gone", "d0"])] == ["d2", "d0"]
