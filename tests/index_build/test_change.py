"""Adding documents."""

from pathlib import Path

import pytest

from ratchet.core.config import IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question
from ratchet.evaluation.measures.retrieval import gold_recall
from ratchet.questions.leakage import find_leakage
from ratchet.retrieval.layout import Manifest, read_manifest
from ratchet.retrieval.loader import open_folder
from tests.helpers.building import SMALL, build, built, corpus, queries, results, tree, with_sources
from tests.helpers.tiny_index import index_config, write_documents

A, B = corpus(40, 0), corpus(25, 1, name="e")
QUERIES = queries(30)


@pytest.fixture
def config(tmp_path: Path) -> IndexConfig:
    """An index of A, built."""
    config = index_config(tmp_path, A, shard_documents=15, **SMALL)
    build(config)
    return config


def documents_of(found: list[list[tuple[str, float, str]]]) -> set[str]:
    return {chunk.partition("#")[0] for each in found for chunk, _, _ in each}


def add(config: IndexConfig, folder: Path, documents: list[dict[str, str]]) -> Manifest:
    number = len(config.documents)
    path = write_documents(folder / f"more-{number}.jsonl", documents)
    return built(with_sources(config, path))


def test_brackets_are_no_part_of_an_id(tmp_path: Path) -> None:
    finewebs = [{**document, "id": f"<urn:uuid:{i}>"} for i, document in enumerate(A[:3])]
    question = Question(id="q", text="?", gold_ids=("urn:uuid:1", "<urn:uuid:2>"))
    config = index_config(tmp_path, finewebs, **SMALL)
    build(config)
    index = open_folder(config.path)
    found = [index.store.passage(chunk, 0.0) for gold in question.gold_ids for chunk in index.store.chunks_of(gold)]
    assert {passage.text for passage in found} and gold_recall(question, found) == 1.0
    with pytest.raises(UserError, match="have ids that the index holds already"):
        add(config, tmp_path, [{**B[0], "id": "urn:uuid:1"}])
    bracketed = Question(id="r", text="!", gold_ids=("<urn:uuid:1>",))
    assert len(find_leakage([question], [bracketed]).documents) == 1


@pytest.mark.slow
def test_an_index_with_added_documents_is_the_one_built_of_all(tmp_path: Path, config: IndexConfig) -> None:
    before = read_manifest(Path(config.path))
    shards = {path: path.stat().st_ino for path in Path(config.path).glob("shards/*/*")}
    after = add(config, tmp_path, B)
    assert {path: path.stat().st_ino for path in shards} == shards
    assert (after.documents, len(after.shards)) == (65, 5)
    assert before.digest != after.digest == read_manifest(Path(config.path)).digest
    fresh = with_sources(config, tmp_path / "more-1.jsonl").model_copy(update={"path": str(tmp_path / "fresh")})
    assert built(fresh).digest == after.digest
    assert tree(Path(fresh.path)) == tree(Path(config.path))
    found = results(config.path, QUERIES)
    assert found == results(fresh.path, QUERIES)
    assert documents_of(found) & {"d1", "e1"} == {"d1", "e1"}


@pytest.mark.parametrize("where", ["in the index", "in one not yet listed", "in the same source"])
def test_an_id_that_is_there_is_refused_before_anything_is_built(tmp_path: Path, where: str) -> None:
    """And leaves the index as it was, so that other documents can be added instead."""
    config = index_config(tmp_path, A, shard_documents=15, **SMALL)
    build(config, job=(0, 3) if where == "in one not yet listed" else None)
    before = tree(Path(config.path))
    clash = [*B[:3], {**(B[0] if where == "in the same source" else A[7]), "text": "harbour"}]
    with pytest.raises(UserError, match=r"'d7'|'e0'") as caught:
        add(config, tmp_path, clash)
    assert ("rebuild the index" in str(caught.value)) == (where == "in the index")
    assert tree(Path(config.path)) == before
    assert add(config, tmp_path, B[:3]).documents == 43
